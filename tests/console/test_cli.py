"""The list of commands, and that each imports only what it needs: a person waits for the first line."""

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
"""Commands that write lines, or draw only while they wait."""


def loaded(code: str, *names: str) -> list[str]:
    """Which of these modules are there after this code, in a process of its own."""
    words = [sys.executable, "-c", f"{code}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def helped(*names: str) -> str:
    """The code that asks these commands for their help, one after another."""
    calls = [f"commands([{name!r}, '--help'], standalone_mode=False)" for name in names]
    return "\n".join(["from console.cli import commands", *calls])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_commands_say(name: str) -> None:
    """The list imports none of them, and so has their first sentences written down."""
    context = click.Context(commands)
    command = commands.get_command(context, name)

    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200) == COMMANDS[name]


def test_help_imports_no_command() -> None:
    """What is not called costs nothing."""
    modules = [f"console.commands.{name.replace('-', '')}" for name in COMMANDS]
    code = "from console.cli import commands\ncommands(['--help'], standalone_mode=False)"

    assert loaded(code, *modules, *CLIENT, *LIBRARIES) == []


def test_a_command_imports_no_other() -> None:
    """Nor what only others need."""
    assert loaded(helped("console"), *CLIENT, *LIBRARIES) == []
    assert loaded(helped("uncordon"), "console.commands.drain", *LIBRARIES) == []


def test_what_reads_the_journal_alone_imports_no_client() -> None:
    """It never asks the API server, or only when it has found something to redrive."""
    assert loaded(helped("events", "deadletters", "redrive"), *CLIENT, "requests", "sqlalchemy") == []


def test_what_writes_lines_imports_no_drawing() -> None:
    """Tables and bars are for those that show some; nor is a synchronous client there, or the models of a typed one."""
    assert loaded(helped(*PLAIN), *(name for name in LIBRARIES if name != "cloudevents")) == []


def test_a_name_that_is_none_is_refused_with_a_proposal() -> None:
    """The list knows the names without the commands."""
    words = [sys.executable, "-m", "console.cli", "stat"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "No such command 'stat'" in done.stderr
    assert "start" in done.stderr
