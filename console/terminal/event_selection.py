"""Selects recorded events by id, or those of a maintenance or run between two event types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from console.operations.errors import NoResult
from console.terminal.escaping import escaped
from console.terminal.param_types import Name
from eventing.events import SOURCE
from eventing.journal.entries import Entry, Query
from eventing.journal.batching import bare
from kube.mutex.objects import RUN

if TYPE_CHECKING:
    from eventing.journal.store import Journal

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
SHOWN = 5
"""Maximum number of other uids that the note about an ambiguous name lists."""


@dataclass(frozen=True)
class Chosen:
    """The events that the command line names: ids, or a maintenance or run, with the first and the last event type."""

    ids: tuple[str, ...] = ()
    maintenance: str = ""
    run: str = ""
    first: str = ""
    last: str = ""


def selection_options(command: Decorated) -> Decorated:
    """Add the options of `Chosen`."""
    ids = click.option("--id", "ids", type=Name(), multiple=True, help="The event with this id; repeatable.")
    maintenance = click.option(
        "--maintenance",
        type=Name(),
        default="",
        help="All events of the NodeMaintenance with this uid, or the newest of this name.",
    )
    run = run_option("All events of the MutexRunConfig with this uid, or the newest of this name.")
    first = click.option(
        "--from",
        "first",
        type=Name(),
        default="",
        metavar="STEP",
        help="Of those, from this type on, such as node.cordoned.",
    )
    last = click.option(
        "--until", "last", type=Name(), default="", metavar="STEP", help="And up to the last one of this type."
    )
    return ids(maintenance(run(first(last(command)))))


def run_option(text: str) -> Callable[[Decorated], Decorated]:
    """Add `--run`."""
    return click.option("--run", type=Name(), default="", help=text)


def refuse_both(maintenance: str, run: str) -> None:
    """Raise `UsageError` if the user names both a maintenance and a run."""
    if run and maintenance:
        raise click.UsageError("--run is of a MutexRunConfig, --maintenance of a NodeMaintenance: leave one out")


def uid_of_run(book: Journal, run: str) -> str:
    """Return the uid of the newest MutexRunConfig with this name or uid, by the rules of `_newest`.

    Raises `NoResult` if the journal has none.
    """
    found = [bare(entry) for entry in book.each(Query(maintenance=run)) if entry.kind == RUN and entry.maintenance]
    if not found:
        message = f"the journal has no event of a MutexRunConfig {run}, by name or uid"
        raise NoResult(f"{message}: see kubectl maintenance mutex status")
    return _newest(found, run)


def selected(book: Journal, chosen: Chosen) -> list[Entry]:
    """Return the selected entries in order of arrival, each event once. Raises `NoResult` naming the missing events."""
    refuse_both(chosen.maintenance, chosen.run)
    ids, maintenance = chosen.ids, uid_of_run(book, chosen.run) if chosen.run else chosen.maintenance
    if not ids and not maintenance:
        raise click.UsageError(
            "which events? Name them by --id, or their NodeMaintenance by --maintenance, their MutexRunConfig by --run"
        )
    found = _once(book.select(Query(ids=ids, maintenance=maintenance)))
    if maintenance:  # an event from another client may have only the name
        found = [entry for entry in found if entry.maintenance]
    missing = set(ids) - {entry.event.get_id() for entry in found}
    if missing or not found:
        what = f"event {', '.join(sorted(missing))}" if missing else f"event of NodeMaintenance {maintenance}"
        raise NoResult(f"the journal holds no {what}: see kubectl maintenance events")
    if maintenance:
        newest = _newest(found, maintenance)
        found = [entry for entry in found if entry.maintenance == newest]
    return between(found, chosen.first, chosen.last)


def _newest(entries: Sequence[Entry], name: str) -> str:
    """Return `name` if it is the uid of an object, else the uid of the newest object with this name.

    Any client can emit an event about an object, even one whose uid equals another object's name. Objects with an event
    from our functions therefore take precedence. If the entries are about several objects, a note on stderr names the
    choice, unless our functions confirm that `name` is a uid.
    """
    uids = list(dict.fromkeys(entry.maintenance for entry in entries))  # in order of their first event
    ours = {entry.maintenance for entry in entries if entry.event.get_source().startswith(SOURCE)}
    possible = [uid for uid in uids if uid in ours or not ours]
    newest = name if name in possible else possible[-1]
    others = [uid for uid in reversed(uids) if uid != newest]
    if others and name not in ours:
        also = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
        note = f"{name} is the one with the uid {newest} here; in the journal are also {also}: name one by its uid."
        click.echo(escaped(note), err=True)
    return newest


def _once(entries: Sequence[Entry]) -> list[Entry]:
    """Drop each dead letter whose event was also recorded as it arrived."""
    whole = {(entry.event.get_source(), entry.event.get_id()) for entry in entries if entry.dead_letter is None}
    return [
        entry
        for entry in entries
        if entry.dead_letter is None or (entry.event.get_source(), entry.event.get_id()) not in whole
    ]


def between(entries: Sequence[Entry], first: str, last: str) -> list[Entry]:
    """Return the entries from the first event of type `first` to the last of type `last`; "" means no limit."""
    start = _places(entries, first, "--from")[0] if first else 0
    end = _places(entries, last, "--until")[-1] if last else len(entries) - 1
    if start > end:
        raise NoResult(f"--until {last} comes before --from {first} in this recording")
    return list(entries[start : end + 1])


def _places(entries: Sequence[Entry], step: str, option: str) -> list[int]:
    kinds = [entry.event.get_type() for entry in entries]
    places = [place for place, kind in enumerate(kinds) if kind == step or kind.endswith(f".{step}")]
    if not places:
        raise NoResult(f"{option} {step}: there are only {', '.join(dict.fromkeys(kinds))}")
    return places
