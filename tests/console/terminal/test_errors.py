"""Tests of how a command ends on Ctrl-C and on an error with text from others."""

from __future__ import annotations

import click
import pytest
from click import termui
from click.testing import CliRunner

from console.operations.errors import OperationError
from console.terminal.errors import CommandGroup, confirm, set_interrupt_note


def run_failing_command(error: BaseException, *, continues: str = "") -> tuple[int, str]:
    """Run a command that raises `error`, and return its exit status and stderr."""

    @click.group(cls=CommandGroup)
    def group() -> None:
        """Group all commands."""

    @group.command
    def fail() -> None:
        if continues:
            set_interrupt_note(lambda: continues)
        raise error

    result = CliRunner().invoke(group, ["work"])
    return result.exit_code, result.stderr


def test_ctrl_c_exits_with_130_and_reports_what_continues() -> None:
    """Check that Ctrl-C exits with 130 and reports what continues, or nothing if nothing continues."""
    assert run_failing_command(KeyboardInterrupt()) == (130, "")
    assert run_failing_command(KeyboardInterrupt(), continues="node\x1b goes on") == (
        130,
        "\nInterrupted: node\\x1b goes on\n",
    )


@pytest.mark.parametrize("error_type", [OperationError, click.ClickException])
def test_error_is_one_escaped_line(error_type: type[Exception]) -> None:
    """Check that an error is one line in which control characters are escaped and markup is literal."""
    assert run_failing_command(error_type("no node [/]\n\x1b[2J")) == (1, "Error: no node [/]\\n\\x1b[2J\n")


def test_ctrl_c_at_a_confirmation_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Ctrl-C at a confirmation ends the command, unlike a closed stdin, which is an error with a remedy."""

    def raise_interrupt(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(termui, "visible_prompt_func", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        confirm("Redrive 2 dead letters?", "use --yes")
