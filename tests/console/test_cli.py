"""Tests of the list of commands, and of lazy imports: each command imports only what it needs, to start fast."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from console.cli import COMMANDS, commands
from tests.sources import ROOT

CLIENT = ("aiohttp", "asyncio", "kubernetes.aio.client.rest")
LIBRARIES = ("flask", "rich", "requests", "sqlalchemy", "yaml", "cloudevents", "pydantic", "oauthlib", "websocket")
PLAIN = ("start", "stop", "drain", "uncordon", "must-gather", "events", "redrive")
"""Commands that print plain lines, or draw tables only while they wait."""


def loaded(code: str, *names: str) -> list[str]:
    """Return which of these modules are imported after this code ran in a new process."""
    words = [sys.executable, "-c", f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def helped(*names: str) -> str:
    """Return code that prints the help of these commands."""
    calls = [f"commands([{name!r}, '--help'], standalone_mode=False)" for name in names]
    return "\n".join(["from console.cli import commands", *calls])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_commands_say(name: str) -> None:
    """Check that the list of commands has the first sentence of each command's help.

    The list repeats the sentences because it does not import the commands.
    """
    context = click.Context(commands)
    command = commands.get_command(context, name)

    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200) == COMMANDS[name]


def test_help_imports_no_command() -> None:
    """Check that the general help imports no command and no large library."""
    modules = [f"console.commands.{name.replace('-', '')}" for name in COMMANDS]
    code = "from console.cli import commands\ncommands(['--help'], standalone_mode=False)"

    assert loaded(code, *modules, *CLIENT, *LIBRARIES) == []


def test_a_command_imports_no_other() -> None:
    """Check that a command does not import other commands and their libraries."""
    assert loaded(helped("console"), *CLIENT, *LIBRARIES) == []
    assert loaded(helped("uncordon"), "console.commands.drain", *LIBRARIES) == []


def test_what_reads_the_journal_alone_imports_no_client() -> None:
    """Check that commands that only read the journal import no API client.

    They never call the API server, or do so only after they have found a dead letter to redrive.
    """
    assert loaded(helped("events", "deadletters", "redrive"), *CLIENT, "requests", "sqlalchemy") == []


def test_what_writes_lines_imports_no_drawing() -> None:
    """Check that commands that print plain lines do not import the table library or other large libraries."""
    assert loaded(helped(*PLAIN), *(name for name in LIBRARIES if name != "cloudevents")) == []


def test_a_name_that_is_none_is_refused_with_a_proposal() -> None:
    """Check that an unknown command is refused with a suggestion, without importing the commands."""
    words = [sys.executable, "-m", "console.cli", "stat"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "No such command 'stat'" in done.stderr
    assert "start" in done.stderr
