"""Tests for the exit of a command after Ctrl-C, and after an error whose text needs escaping."""

from __future__ import annotations

import click
import pytest
from click import termui
from click.testing import CliRunner

from console.operations.errors import OperationError
from console.terminal.errors import CommandGroup, confirm, set_interrupt_note


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


def test_ctrl_c_at_confirmation_ends_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Ctrl-C at a confirmation ends the command; a closed stdin would be an error with a remedy."""

    def raise_interrupt(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(termui, "visible_prompt_func", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        confirm("Redrive 2 dead letters?", "use --yes")
