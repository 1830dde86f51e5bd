"""`kubectl maintenance redrive`: deliver dead letters again, each to the function that it was meant for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from console.operations.errors import NoResult
from console.operations.redriving import address, broker_address, letter_fields
from console.terminal.errors import confirm, door
from console.terminal.options import broker_option, cluster_options, functions_option, namespace_option, output_option
from console.terminal.recording import journal_option, opened
from console.terminal.screen import note, show_json
from eventing.event_types import short
from eventing.journal.entries import Attempt, Entry, Query
from eventing.replay.redrive import redrive as delivered
from eventing.replay.redrive import still_open
from kube.words import counted

if TYPE_CHECKING:
    from eventing.journal.store import Journal


@click.command
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All that are open.")
@functions_option("base", "the address that it could not be delivered to")
@broker_option
@namespace_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@journal_option
@output_option
@cluster_options
def redrive(
    ids: tuple[str, ...], everything: bool, base: str, broker: str, namespace: str, yes: bool, journal: str, output: str
) -> None:
    """Deliver dead letters again: each to the one function that it was meant for; the answer goes to the broker.

    Exit status 1 when one fails again.

    \b
    Example:
      kubectl maintenance redrive ID
      kubectl maintenance redrive --all --yes
    """
    if bool(ids) == everything:
        raise click.UsageError("name dead letters by their ids, or take --all")
    with opened(journal) as book, door() as cluster:
        letters = still_open(book.select(Query(dead=True, ids=ids)))
        _check(letters, ids)
        urls = [address(letter, base) for letter in letters]
        sink = broker or broker_address(cluster, namespace)
        if not yes and letters:
            confirm(f"Deliver {counted(len(letters), 'dead letter')} again, for real?", "say --yes")
        made = [_redriven(letter, url, sink, book, output) for letter, url in zip(letters, urls, strict=True)]
    note(f"{sum(not attempt.failed for attempt in made)} of {len(made)} redriven", output)
    if output == "json":
        show_json({"redriven": [_fields(letter, done) for letter, done in zip(letters, made, strict=True)]})
    if any(attempt.failed for attempt in made):
        raise click.exceptions.Exit(1)


def _fields(letter: Entry, done: Attempt) -> dict[str, Any]:
    return {**letter_fields(letter), "open": done.failed, "now": done.as_data()}


def _check(letters: Sequence[Entry], ids: tuple[str, ...]) -> None:
    missing = sorted(set(ids) - {letter.event.get_id() for letter in letters})
    if missing:
        raise NoResult(f"no open dead letter {', '.join(missing)}: see kubectl maintenance deadletters --all")


def _redriven(letter: Entry, url: str, broker: str, book: Journal, output: str) -> Attempt:
    """Deliver one, record the attempt, and show it."""
    made = delivered(letter, url, broker)
    book.write_attempts([made])
    answered = ", ".join(short(str(reply["type"])) for reply in made.replies) or "nothing"
    outcome = f"failed: {made.status} {made.error}" if made.failed else f"answered {answered}"
    note(f"{letter.event.get_id()}  {short(letter.event.get_type())}  ─▶ {made.function or url}  {outcome}", output)
    return made
