"""Tests for the list of commands, for the exit after an error or Ctrl-C, and for lazy imports."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from console.cli import COMMANDS, MAX_SHORT_HELP, SHORT_HELPS, CommandGroup, cli, import_command
from console.operations.errors import OperationError
from console.operations.versions import read_client_version
from console.terminal.output import set_interrupt_note
from tests.sources import ROOT

CLIENT_MODULES = ("aiohttp", "asyncio", "kubernetes.aio.client.rest")
LARGE_LIBRARIES = (
    "flask",
    "rich",
    "requests",
    "sqlalchemy",
    "yaml",
    "cloudevents",
    "pydantic",
    "oauthlib",
    "websocket",
)
PLAIN_COMMANDS = (
    *("preview", "start", "stop", "cordon", "drain", "uncordon"),
    *("must-gather", "events", "redrive"),
)
"""Commands that print only plain lines, or that print tables only while they wait."""


def list_imported_modules(code: str, *names: str) -> list[str]:
    """Run the code in a new process, and return the given modules that the code has imported."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1].split()


def build_help_code(*names: str) -> str:
    """Return Python code that prints the help of these commands."""
    calls = [f"cli([{name!r}, '--help'], standalone_mode=False)" for name in names]
    return "\n".join(["from console.cli import cli", *calls])


def test_command_list_contains_help_of_each_command() -> None:
    """Check that the list of commands contains the first sentence of each command's help.

    The list has its own copies of these sentences because it does not import the commands.
    """
    commands = {name: import_command(name) for name in COMMANDS}
    helps = {name: (command.name, command.get_short_help_str(200)) for name, command in commands.items()}

    assert helps
    assert helps == {name: (name, short_help) for name, short_help in COMMANDS.items()}


def test_command_list_truncates_no_help_text() -> None:
    """Check that each command's line fits on a terminal of 80 columns, so that no line ends with "..."."""
    commands = CliRunner().invoke(cli, ["--help"], terminal_width=80).stdout.partition("Commands:")[2]

    assert set(SHORT_HELPS) == set(COMMANDS)
    assert max(map(len, SHORT_HELPS.values())) <= MAX_SHORT_HELP
    assert "..." not in commands
    for name, short_help in SHORT_HELPS.items():
        assert any(line.split(maxsplit=1) == [name, short_help] for line in commands.splitlines())


def test_subcommand_list_of_mutex_truncates_no_help_text() -> None:
    commands = CliRunner().invoke(cli, ["mutex", "--help"], terminal_width=80).stdout.partition("Commands:")[2]

    assert "status" in commands
    assert "..." not in commands


def test_version_option_prints_version_of_package() -> None:
    result = CliRunner().invoke(cli, ["--version"])

    assert (result.exit_code, result.stdout) == (0, f"kubectl maintenance {read_client_version()}\n")


@pytest.mark.parametrize(("value", "is_colored"), [(None, True), ("", True), ("1", False)])
def test_no_color_variable_disables_colors(
    monkeypatch: pytest.MonkeyPatch, value: str | None, is_colored: bool
) -> None:
    """Check that `NO_COLOR` disables colors on a terminal if its value is not empty (https://no-color.org)."""

    @click.command
    def print_red_text() -> None:
        click.secho("red", fg="red")

    monkeypatch.setattr("console.cli.import_command", lambda _: print_red_text)
    result = CliRunner().invoke(cli, ["status"], env={"NO_COLOR": value}, color=True)

    assert ("\x1b[31m" in result.stdout) == is_colored


def test_general_help_imports_no_command() -> None:
    """Check that the general help imports neither a command nor a large library."""
    modules = [import_command(name).callback.__module__ for name in COMMANDS]
    code = "from console.cli import cli\ncli(['--help'], standalone_mode=False)"

    assert list_imported_modules(code, *modules, *CLIENT_MODULES, *LARGE_LIBRARIES) == []


def test_command_imports_no_other_command() -> None:
    """Check that a command imports neither other commands nor their libraries."""
    assert list_imported_modules(build_help_code("console"), *CLIENT_MODULES, *LARGE_LIBRARIES) == []
    assert list_imported_modules(build_help_code("uncordon"), "console.commands.drain", *LARGE_LIBRARIES) == []


def test_journal_commands_import_no_api_client() -> None:
    """Check that commands that only read the journal import no API client.

    They call the API server never, or only after they have found a dead letter to redrive.
    """
    assert (
        list_imported_modules(
            build_help_code("history", "events", "deadletters", "redrive"), *CLIENT_MODULES, "requests", "sqlalchemy"
        )
        == []
    )


def test_plain_commands_import_no_table_library() -> None:
    """Check that commands that print plain lines import neither the table library nor other large libraries."""
    assert (
        list_imported_modules(
            build_help_code(*PLAIN_COMMANDS), *(name for name in LARGE_LIBRARIES if name != "cloudevents")
        )
        == []
    )


def test_unknown_command_is_rejected_with_suggestion() -> None:
    """Check that an unknown command is rejected with a suggestion."""
    command = [sys.executable, "-m", "console.cli", "stat"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 2
    assert "No such command 'stat'" in result.stderr
    assert "start" in result.stderr


def run_command_that_raises(error: BaseException, *, interrupt_note: str = "") -> tuple[int, str]:
    """Run a command that raises `error`; return its exit status and stderr."""

    @click.group(cls=CommandGroup)
    def group() -> None:
        """Define the group of commands."""

    @group.command
    def fail() -> None:
        if interrupt_note:
            set_interrupt_note(lambda: interrupt_note)
        raise error

    result = CliRunner().invoke(group, ["fail"])
    return result.exit_code, result.stderr


def test_ctrl_c_exits_with_130_and_prints_note() -> None:
    """Check that Ctrl-C exits with 130, and prints the command's note about what continues in the cluster, if any."""
    assert run_command_that_raises(KeyboardInterrupt()) == (130, "")
    assert run_command_that_raises(KeyboardInterrupt(), interrupt_note="node\x1b continues") == (
        130,
        "\nInterrupted: node\\x1b continues\n",
    )


@pytest.mark.parametrize("error_type", [OperationError, click.ClickException])
def test_error_message_is_one_escaped_line(error_type: type[Exception]) -> None:
    """Check that an error is printed as one line, with escaped control characters and literal markup."""
    assert run_command_that_raises(error_type("no node [/]\n\x1b[2J")) == (1, "Error: no node [/]\\n\\x1b[2J\n")
