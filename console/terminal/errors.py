"""Errors of commands: one line and the exit status. Also: asking before real writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from console.operations.errors import NoResult, OperationError
from console.terminal.options import CONTEXT, KUBECONFIG
from kube.door.errors import ApiError

if TYPE_CHECKING:
    from kube.door.cluster import Cluster


class Commands(click.Group):
    """The group of all commands: the one place where an operation's error becomes a line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OperationError as error:
            click.ClickException(str(error)).show()
            raise click.exceptions.Exit(error.exit_status) from None


@contextmanager
def door() -> Iterator[Cluster]:
    """The cluster that the command line names. `ApiError` and `NoAnswer` inside become `NoResult`."""
    from console.terminal.connection import sentence
    from eventing.replay.again import NoAnswer
    from kube.door.cluster import Cluster  # whoever opens no door waits for none of it

    meta = click.get_current_context().meta
    try:
        cluster = Cluster(meta.get(KUBECONFIG), meta.get(CONTEXT))
        try:
            yield cluster
        finally:
            cluster.close()
    except ApiError as error:
        raise NoResult(sentence(error)) from None
    except NoAnswer as error:
        raise NoResult(f"{error}: name the URL under which functions are found by --functions") from None


def confirm(question: str, otherwise: str) -> None:
    """Ask, on stderr. Raises `NoResult` when the answer is no, or nobody is there to give one.

    `otherwise` is what can be done without an answer.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # the question's line is open
        raise NoResult(f"nobody confirmed: {otherwise}") from None
    if not agreed:
        raise NoResult(f"not confirmed, nothing was done: {otherwise}")
