"""Tests of how a command ends on Ctrl-C and on an error with text from others."""

from __future__ import annotations

import click
import pytest
from click import termui
from click.testing import CliRunner

from console.operations.errors import OperationError
from console.terminal.errors import Commands, confirm, goes_on


def ended(error: BaseException, *, rest: str = "") -> tuple[int, str]:
    """Run a command that raises `error`, and return its exit status and stderr."""

    @click.group(cls=Commands)
    def group() -> None:
        """Group all commands."""

    @group.command
    def work() -> None:
        if rest:
            goes_on(lambda: rest)
        raise error

    result = CliRunner().invoke(group, ["work"])
    return result.exit_code, result.stderr


def test_ctrl_c_is_130_and_says_what_goes_on() -> None:
    """Check that Ctrl-C exits with 130 and reports what continues, or nothing if nothing continues."""
    assert ended(KeyboardInterrupt()) == (130, "")
    assert ended(KeyboardInterrupt(), rest="node\x1b goes on") == (130, "\nInterrupted: node\\x1b goes on\n")


@pytest.mark.parametrize("kind", [OperationError, click.ClickException])
def test_an_error_is_one_line_that_can_be_read(kind: type[Exception]) -> None:
    """Check that an error is one line in which control characters are escaped and markup is literal."""
    assert ended(kind("no node [/]\n\x1b[2J")) == (1, "Error: no node [/]\\n\\x1b[2J\n")


def test_ctrl_c_at_a_question_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Ctrl-C at a confirmation ends the command, unlike a closed stdin, which is an error with a remedy."""

    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(termui, "visible_prompt_func", interrupted)
    with pytest.raises(KeyboardInterrupt):
        confirm("Deliver 2 dead letters again, for real?", "say --yes")
