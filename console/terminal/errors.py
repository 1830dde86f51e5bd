"""Converts errors of commands to one line and an exit status; also asks for confirmation before real writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from console.operations.errors import NoResult, OperationError
from console.terminal.escaping import escaped
from console.terminal.options import access
from kube.client.api_errors import ApiError, Unavailable

if TYPE_CHECKING:
    from kube.client.sync_client import Cluster

INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended: 128 + SIGINT, as shells expect."""
GOES_ON = "console.goes_on"


class Commands(click.Group):
    """The click group that converts an operation's error, or Ctrl-C, to a message and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and convert its errors."""
        try:
            return super().invoke(ctx)
        except OperationError as error:
            click.ClickException(escaped(str(error))).show()
            raise click.exceptions.Exit(error.exit_status) from None
        except click.UsageError:
            raise  # click formats errors of the command line itself
        except click.ClickException as error:
            click.ClickException(escaped(error.message)).show()
            raise click.exceptions.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            if rest := ctx.meta.get(GOES_ON):
                click.echo(f"\nInterrupted: {escaped(rest())}", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


def goes_on(rest: Callable[[], str]) -> None:
    """Set the text to print if Ctrl-C ends the command from now on: what continues, or remains, without it."""
    click.get_current_context().meta[GOES_ON] = rest


@contextmanager
def door() -> Iterator[Cluster]:
    """Yield a client for the cluster that the command line names. An `ApiError` in the block becomes `NoResult`."""
    from console.terminal.connection import sentence
    from kube.client.sync_client import Cluster  # slow import, needed only with a cluster

    try:
        cluster = Cluster(*access())
    except Unavailable as error:
        raise NoResult(error.message) from None  # the message contains the remedy
    try:
        with closing(cluster):
            yield cluster
    except ApiError as error:
        raise NoResult(sentence(error)) from None


def confirm(question: str, otherwise: str) -> None:
    """Ask for confirmation on stderr. Raises `NoResult` if the answer is no, or if stdin gives no answer.

    `otherwise` describes what the user can do without a confirmation.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as abort:
        click.echo(err=True)  # end the line of the question
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise NoResult(f"nobody confirmed: {otherwise}") from None
    if not agreed:
        raise NoResult(f"not confirmed, nothing was done: {otherwise}")
