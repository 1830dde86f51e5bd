"""`kubectl maintenance redrive`: delivers dead letters again, each to the function that did not accept it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from console.operations.errors import NoResult
from console.operations.dead_letter_redrive import Item, Result, broker_address, items, letter_fields, redriven, waiting
from console.terminal.errors import confirm, door
from console.terminal.options import broker_option, cluster_options, functions_option, namespace_option, output_option
from console.terminal.journal import journal_option, opened
from console.terminal.output import note, show_json
from console.terminal.param_types import Name
from eventing.event_types import short
from eventing.journal.entries import Entry
from eventing.replay.redrive import function_of
from kube.text_limits import counted


@click.command
@click.argument("ids", type=Name(), nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All that are open.")
@functions_option("base", "the Triggers' addresses")
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

    The function's address comes from --functions or from its Trigger, never from the dead letter. The exit status is 1
    if a delivery fails again. If the Broker requires authentication, $SINK_TOKEN names the file with the token.

    \b
    Example:
      kubectl maintenance redrive ID
      kubectl maintenance redrive --all --yes
    """
    if bool(ids) == everything:
        raise click.UsageError("name dead letters by their ids, or take --all")
    with opened(journal) as book, door() as cluster:
        letters = waiting(book, ids)
        _check(letters, ids)
        sink = broker or broker_address(cluster, namespace)
        found = items(letters, base, namespace, cluster)
        if not yes and found:
            for item in found:
                note(f"{_named(item)}{'' if item.problem else f' at {item.url}'}", output)
            confirm(f"Deliver {counted(len(letters), 'dead letter')} again, for real?", "say --yes")
        made = []
        for result in redriven(found, sink, book):
            made.append(result)
            note(f"{_named(result.item)}  {_outcome(result)}", output)
    note(f"{sum(not result.failed for result in made)} of {len(made)} redriven", output)
    if output == "json":
        show_json({"redriven": [_fields(result) for result in made]})
    if any(result.failed for result in made):
        raise click.exceptions.Exit(1)


def _fields(result: Result) -> dict[str, Any]:
    now = result.attempt.as_data() if result.attempt else {"note" if result.is_closed else "error": result.problem}
    return {**letter_fields(result.item.letter), "open": result.failed, "url": result.item.url, "now": now}


def _named(item: Item) -> str:
    """Format the dead letter and its function as one line."""
    event = item.letter.event
    return f"{event.get_id()}  {short(event.get_type())}  ─▶ {function_of(item.letter) or 'nobody'}"


def _check(letters: Sequence[Entry], ids: tuple[str, ...]) -> None:
    missing = sorted(set(ids) - {letter.event.get_id() for letter in letters})
    if missing:
        raise NoResult(f"no open dead letter {', '.join(missing)}: see kubectl maintenance deadletters --all")


def _outcome(result: Result) -> str:
    """Describe the outcome of a redrive in words."""
    made = result.attempt
    if made is None:
        return result.problem if result.is_closed else f"failed: {result.problem}"
    answered = ", ".join(short(str(reply["type"])) for reply in made.replies) or "nothing"
    return f"failed: {made.status} {made.error}" if made.failed else f"answered {answered}"
