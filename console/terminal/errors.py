"""Errors of commands: one line and the exit status. Also: asking before real writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from console.operations.errors import NoResult, OperationError
from console.terminal.escaping import escaped
from console.terminal.options import access
from kube.door.api_errors import ApiError, Unavailable

if TYPE_CHECKING:
    from kube.door.sync_client import Cluster

INTERRUPTED = 130
"""128 + SIGINT: what a shell expects of a program that Ctrl-C ended."""
GOES_ON = "console.goes_on"


class Commands(click.Group):
    """The group of all commands: the one place where an operation's error, or Ctrl-C, becomes a line and a status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OperationError as error:
            click.ClickException(escaped(str(error))).show()
            raise click.exceptions.Exit(error.exit_status) from None
        except click.UsageError:
            raise  # of the command line: its text is click's
        except click.ClickException as error:
            click.ClickException(escaped(error.message)).show()
            raise click.exceptions.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            if rest := ctx.meta.get(GOES_ON):
                click.echo(f"\nInterrupted: {escaped(rest())}", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


def goes_on(rest: Callable[[], str]) -> None:
    """Have it told, should Ctrl-C end the command from now on, what goes on without it, or stays."""
    click.get_current_context().meta[GOES_ON] = rest


@contextmanager
def door() -> Iterator[Cluster]:
    """The cluster that the command line names. `ApiError` inside becomes `NoResult`."""
    from console.terminal.connection import sentence
    from kube.door.sync_client import Cluster  # whoever opens no door waits for none of it

    try:
        cluster = Cluster(*access())
    except Unavailable as error:
        raise NoResult(error.message) from None  # it names the remedy already
    try:
        with closing(cluster):
            yield cluster
    except ApiError as error:
        raise NoResult(sentence(error)) from None


def confirm(question: str, otherwise: str) -> None:
    """Ask, on stderr. Raises `NoResult` when the answer is no, or nobody is there to give one.

    `otherwise` is what can be done without an answer.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as abort:
        click.echo(err=True)  # the question's line is open
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise NoResult(f"nobody confirmed: {otherwise}") from None
    if not agreed:
        raise NoResult(f"not confirmed, nothing was done: {otherwise}")
