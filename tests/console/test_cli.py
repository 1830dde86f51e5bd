"""Tests for the list of commands, for the exit after an error or Ctrl-C, and for lazy imports to start fast."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from console.cli import COMMANDS, CommandGroup, import_command
from console.operations.errors import OperationError
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
PLAIN_COMMANDS = ("preview", "start", "stop", "drain", "uncordon", "must-gather", "events", "redrive")
"""Commands that print plain lines, or tables only while they wait."""


def list_imported_modules(code: str, *names: str) -> list[str]:
    """Run the code in a new process, and return the given modules that the code has imported."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1].split()


def build_help_code(*names: str) -> str:
    """Return Python code that prints the help of these commands."""
    calls = [f"cli([{name!r}, '--help'], standalone_mode=False)" for name in names]
    return "\n".join(["from console.cli import cli", *calls])


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_contains_help_of_each_command(name: str) -> None:
    """Check that the list of commands contains the first sentence of each command's help.

    The list repeats the sentences because it does not import the commands.
    """
    command = import_command(name)

    assert command.name == name
    assert command.get_short_help_str(200) == COMMANDS[name]


def test_general_help_imports_no_command() -> None:
    """Check that the general help imports no command and no large library."""
    modules = [import_command(name).callback.__module__ for name in COMMANDS]
    code = "from console.cli import cli\ncli(['--help'], standalone_mode=False)"

    assert list_imported_modules(code, *modules, *CLIENT_MODULES, *LARGE_LIBRARIES) == []


def test_command_imports_no_other_command() -> None:
    """Check that a command does not import other commands or their libraries."""
    assert list_imported_modules(build_help_code("console"), *CLIENT_MODULES, *LARGE_LIBRARIES) == []
    assert list_imported_modules(build_help_code("uncordon"), "console.commands.drain", *LARGE_LIBRARIES) == []


def test_journal_commands_import_no_api_client() -> None:
    """Check that commands that only read the journal import no API client.

    They either never call the API server, or call it only after they have found a dead letter to redrive.
    """
    assert (
        list_imported_modules(
            build_help_code("events", "deadletters", "redrive"), *CLIENT_MODULES, "requests", "sqlalchemy"
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


def run_failing_command(error: BaseException, *, interrupt_note: str = "") -> tuple[int, str]:
    """Run a command that raises `error`; return its exit status and stderr."""

    @click.group(cls=CommandGroup)
    def group() -> None:
        """Group all commands."""

    @group.command
    def fail() -> None:
        if interrupt_note:
            set_interrupt_note(lambda: interrupt_note)
        raise error

    result = CliRunner().invoke(group, ["fail"])
    return result.exit_code, result.stderr


def test_ctrl_c_exits_with_130_and_reports_what_continues() -> None:
    """Check that a command exits with 130 after Ctrl-C, and prints the note about what continues, if a note is set."""
    assert run_failing_command(KeyboardInterrupt()) == (130, "")
    assert run_failing_command(KeyboardInterrupt(), interrupt_note="node\x1b continues") == (
        130,
        "\nInterrupted: node\\x1b continues\n",
    )


@pytest.mark.parametrize("error_type", [OperationError, click.ClickException])
def test_error_message_is_one_escaped_line(error_type: type[Exception]) -> None:
    """Check that an error is one line in which control characters are escaped and markup is literal."""
    assert run_failing_command(error_type("no node [/]\n\x1b[2J")) == (1, "Error: no node [/]\\n\\x1b[2J\n")
