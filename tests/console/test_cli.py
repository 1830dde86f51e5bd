"""Tests of the list of commands, and of lazy imports: each command imports only what it needs, to start fast."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from console.cli import COMMANDS, cli
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
PLAIN_COMMANDS = ("start", "stop", "drain", "uncordon", "must-gather", "events", "redrive")
"""Commands that print plain lines, or draw tables only while they wait."""


def list_imported(code: str, *names: str) -> list[str]:
    """Return which of these modules are imported after this code ran in a new process."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1].split()


def build_help_code(*names: str) -> str:
    """Return code that prints the help of these commands."""
    calls = [f"cli([{name!r}, '--help'], standalone_mode=False)" for name in names]
    return "\n".join(["from console.cli import cli", *calls])


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_has_the_help_of_each_command(name: str) -> None:
    """Check that the list of commands has the first sentence of each command's help.

    The list repeats the sentences because it does not import the commands.
    """
    context = click.Context(cli)
    command = cli.get_command(context, name)

    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200) == COMMANDS[name]


def test_general_help_imports_no_command() -> None:
    """Check that the general help imports no command and no large library."""
    modules = [f"console.commands.{name.replace('-', '')}" for name in COMMANDS]
    code = "from console.cli import cli\ncli(['--help'], standalone_mode=False)"

    assert list_imported(code, *modules, *CLIENT_MODULES, *LARGE_LIBRARIES) == []


def test_command_imports_no_other_command() -> None:
    """Check that a command does not import other commands and their libraries."""
    assert list_imported(build_help_code("console"), *CLIENT_MODULES, *LARGE_LIBRARIES) == []
    assert list_imported(build_help_code("uncordon"), "console.commands.drain", *LARGE_LIBRARIES) == []


def test_journal_commands_import_no_client() -> None:
    """Check that commands that only read the journal import no API client.

    They never call the API server, or do so only after they have found a dead letter to redrive.
    """
    assert (
        list_imported(build_help_code("events", "deadletters", "redrive"), *CLIENT_MODULES, "requests", "sqlalchemy")
        == []
    )


def test_plain_commands_import_no_table_library() -> None:
    """Check that commands that print plain lines do not import the table library or other large libraries."""
    assert (
        list_imported(build_help_code(*PLAIN_COMMANDS), *(name for name in LARGE_LIBRARIES if name != "cloudevents"))
        == []
    )


def test_unknown_command_is_refused_with_a_suggestion() -> None:
    """Check that an unknown command is refused with a suggestion, without importing the commands."""
    command = [sys.executable, "-m", "console.cli", "stat"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 2
    assert "No such command 'stat'" in result.stderr
    assert "start" in result.stderr
