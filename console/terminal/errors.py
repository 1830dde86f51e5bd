"""Converts commands' errors to a one-line message and an exit status, and asks for confirmation before writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from console.operations.errors import NoResult, OperationError
from console.terminal.escaping import escape
from console.terminal.options import get_cluster_access
from kube.client.api_errors import ApiError, Unavailable

if TYPE_CHECKING:
    from kube.client.sync_client import SyncClient

INTERRUPTED_EXIT_STATUS = 130
"""Exit status of a command that Ctrl-C interrupted: 128 + SIGINT, as shells expect."""
INTERRUPT_NOTE_KEY = "console.interrupt_note"


class CommandGroup(click.Group):
    """A click group that converts an operation's error, or Ctrl-C, to a message and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and convert its errors."""
        try:
            return super().invoke(ctx)
        except OperationError as error:
            click.ClickException(escape(str(error))).show()
            raise click.exceptions.Exit(error.exit_status) from None
        except click.UsageError:
            raise  # Click formats errors of the command line itself.
        except click.ClickException as error:
            click.ClickException(escape(error.message)).show()
            raise click.exceptions.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            if build_note := ctx.meta.get(INTERRUPT_NOTE_KEY):
                click.echo(f"\nInterrupted: {escape(build_note())}", err=True)
            raise click.exceptions.Exit(INTERRUPTED_EXIT_STATUS) from None


def set_interrupt_note(build_note: Callable[[], str]) -> None:
    """Set the note to print if Ctrl-C interrupts the command from now on.

    The note reports what continues or remains after the command has exited.
    """
    click.get_current_context().meta[INTERRUPT_NOTE_KEY] = build_note


@contextmanager
def open_client() -> Iterator[SyncClient]:
    """Yield a client for the cluster that the command line selects. An `ApiError` in the block becomes `NoResult`."""
    from console.terminal.connection import format_api_error
    from kube.client.sync_client import SyncClient  # slow import, needed only with a cluster

    try:
        client = SyncClient(*get_cluster_access())
    except Unavailable as error:
        raise NoResult(error.message) from None  # the message contains the remedy
    try:
        with closing(client):
            yield client
    except ApiError as error:
        raise NoResult(format_api_error(error)) from None


def confirm(question: str, alternative: str) -> None:
    """Ask for confirmation on stderr. Raises `NoResult` if the answer is no, or if stdin gives no answer.

    `alternative` describes what the user can do without a confirmation.
    """
    try:
        is_confirmed = click.confirm(question, err=True)
    except click.Abort as abort:
        click.echo(err=True)  # ends the line of the question
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise NoResult(f"no confirmation, nothing was done: {alternative}") from None
    if not is_confirmed:
        raise NoResult(f"not confirmed, nothing was done: {alternative}")
