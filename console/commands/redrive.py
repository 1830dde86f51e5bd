"""`kubectl maintenance redrive`: dead letters delivered once more, to the function that did not take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from console.commands.deadletters import as_json
from console.operations.diff import short
from console.terminal.options import broker_option, cluster_options, functions_option, namespace_option, output_option
from console.terminal.recording import journal_option, opened
from console.terminal.screen import note, show_json
from console.terminal.trouble import Trouble, confirm, door
from eventing.journal.entries import Attempt, Entry, Query
from eventing.replay.redrive import function_of, still_open
from eventing.replay.redrive import redrive as delivered
from eventing.urls import below
from kube.door.api import absent_ok
from kube.door.cluster import Cluster
from kube.words import counted

if TYPE_CHECKING:
    from eventing.journal.store import Journal


@click.command
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All that are open.")
@functions_option("base", "the address that did not take it")
@broker_option
@namespace_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@journal_option
@output_option
@cluster_options
def redrive(
    ids: tuple[str, ...], everything: bool, base: str, broker: str, namespace: str, yes: bool, journal: str, output: str
) -> None:
    """Deliver dead letters once more: to the function that did not take them alone, and its answer to the broker.

    Exit status 1 when one is not taken again.

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
            confirm(f"Deliver {counted(len(letters), 'dead letter')} once more, for real?", "say --yes")
        made = [_redriven(letter, url, sink, book, output) for letter, url in zip(letters, urls, strict=True)]
    note(f"{sum(not attempt.failed for attempt in made)} of {len(made)} redriven", output)
    if output == "json":
        show_json({"redriven": [_row(letter, done) for letter, done in zip(letters, made, strict=True)]})
    if any(attempt.failed for attempt in made):
        raise click.exceptions.Exit(1)


def _row(letter: Entry, done: Attempt) -> dict[str, Any]:
    return {**as_json(letter), "open": done.failed, "now": done.as_data()}


def _check(letters: Sequence[Entry], ids: tuple[str, ...]) -> None:
    missing = sorted(set(ids) - {letter.event.get_id() for letter in letters})
    if missing:
        raise Trouble(f"no open dead letter {', '.join(missing)}: see kubectl maintenance deadletters --all")


def address(letter: Entry, base: str) -> str:
    """Where the function is now; where it was then, when nothing is said of that."""
    function, why = function_of(letter), letter.dead_letter
    if not base:
        return why.destination if why else ""
    if not function:
        raise Trouble(f"which function was at {why and why.destination}? Leave --functions and $FUNCTIONS out")
    return below(base, function)


def broker_address(cluster: Cluster, namespace: str) -> str:
    """The address that Knative gave the Broker."""
    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers"
    found = cluster.run(absent_ok(cluster.api.list(path)))
    for item in found["items"] if found else []:
        if url := ((item.get("status") or {}).get("address") or {}).get("url"):
            return str(url)
    raise Trouble(f"no Broker in namespace {namespace} says its address: name it by --broker or $BROKER")


def _redriven(letter: Entry, url: str, broker: str, book: Journal, output: str) -> Attempt:
    """Deliver one, write down what came of it, and say it."""
    made = delivered(letter, url, broker)
    book.write_attempts([made])
    answered = ", ".join(short(str(reply["type"])) for reply in made.replies) or "nothing"
    said = f"not taken: {made.status} {made.error}" if made.failed else f"answered {answered}"
    note(f"{letter.event.get_id()}  {short(letter.event.get_type())}  ─▶ {made.function or url}  {said}", output)
    return made
