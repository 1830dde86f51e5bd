"""Errors of commands whose exit status 1 is an answer: these end with 2, in one line. And asking before real writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from console.terminal.connection import sentence
from console.terminal.options import CONTEXT, KUBECONFIG
from eventing.replay.again import NoAnswer
from kube.door.cluster import Cluster
from kube.door.errors import ApiError


class Trouble(click.ClickException):
    """What keeps a command from an answer, in one line."""

    exit_code = 2


@contextmanager
def door() -> Iterator[Cluster]:
    """The cluster that the command line names. What it refuses inside is `Trouble`, and so is a function's silence."""
    meta = click.get_current_context().meta
    try:
        cluster = Cluster(meta.get(KUBECONFIG), meta.get(CONTEXT))
        try:
            yield cluster
        finally:
            cluster.close()
    except ApiError as error:
        raise Trouble(sentence(error)) from None
    except NoAnswer as error:
        raise Trouble(f"{error}: name the URL under which functions are found by --functions") from None


def confirm(question: str, otherwise: str) -> None:
    """Ask, on stderr. Raises `Trouble` when the answer is no, or nobody is there to give one.

    `otherwise` is what can be done without an answer.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # the question's line is open
        raise Trouble(f"nobody confirmed: {otherwise}") from None
    if not agreed:
        raise Trouble(f"not confirmed, nothing was done: {otherwise}")
