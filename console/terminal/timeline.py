"""Formats recorded events for the terminal: a tree of cause and effect, a table, or JSON. Pure functions.

The lines contain terminal styles, which `click.echo` removes if the output is not a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import click
from cloudevents.core.base import BaseCloudEvent

from console.terminal.escaping import escaped
from eventing.dead_letters import DeadLetter
from eventing.event_types import short
from eventing.journal.entries import Attempt, Entry, maintenance_of
from eventing.journal.tree import Branch, Tree, missing
from eventing.http_binding import structured
from kube.text_limits import counted

SLOW = 1.0
"""Seconds after which a hop or an attempt is highlighted, because no function should take longer."""
DEEPEST = 12
"""Maximum depth that is indented; deeper events of a chain have the same indentation."""
TYPE_WIDTH, HOP_WIDTH = 40, 10
HEADINGS = ("TIME", "TYPE", "NODE", "MAINTENANCE", "ID", "ATTEMPTS")


def tree_lines(trees: Sequence[Tree]) -> Iterator[str]:
    """Yield a heading for each maintenance or run, followed by a line for each event."""
    for number, tree in enumerate(trees):
        if number:
            yield ""
        branches = list(tree.branches())
        yield _heading(tree, [branch for _, branch in branches])
        start = min(branch.entry.arrived for _, branch in branches)
        for depth, branch in branches:
            yield _line(depth, branch, start)


def _heading(tree: Tree, branches: Sequence[Branch]) -> str:
    first, last = (choose(branch.entry.arrived for branch in branches) for choose in (min, max))
    counts = [f"{counted(len(branches), 'event')} in {(last - first).total_seconds():.3f} s"]
    failed = sum(len(branch.failures) for branch in branches)
    retried = sum(made.failed for branch in branches for made in branch.attempts) - failed
    absent = sum(len(branch.missing) - len(branch.answered) for branch in branches)
    letters = sum(len(branch.dead_letters) for branch in branches)
    alerts = {f"{failed} failed": failed, f"{absent} missing": absent, counted(letters, "dead letter"): letters}
    counts += [f"{retried} retried"] if retried else []
    counts += [click.style(text, fg="red", bold=True) for text, number in alerts.items() if number]
    title = escaped(_title(tree)) if tree.uid else "Of no maintenance"
    return f"{click.style(title, bold=True)}, {_clock(first)}: {', '.join(counts)}"


def _title(tree: Tree) -> str:
    """Return the title of a tree: the node of a maintenance, or the kind of any other object, with name and uid."""
    named = f"{tree.name} ({tree.uid})"
    return f"{named}, node {tree.node}" if tree.kind == "NodeMaintenance" else f"{tree.kind} {named}"


def _line(depth: int, branch: Branch, start: datetime) -> str:
    offset = (branch.entry.arrived - start).total_seconds()
    indent = "  " * (min(depth, DEEPEST) - 1) + "└─ " if depth else ""
    kind = f"{indent}{escaped(short(branch.entry.event.get_type()))}"
    absent = [_answered(name) if name in branch.answered else _missing(name) for name in branch.missing]
    outcomes = [*map(_attempt, branch.attempts), *absent, *map(_letter, branch.dead_letters)]
    return f"{offset:+9.3f} s  {kind:{TYPE_WIDTH}} {_hop(branch):>{HOP_WIDTH}}  {', '.join(outcomes)}".rstrip()


def _hop(branch: Branch) -> str:
    """Return the time from the cause to this event; for a cause outside the tree, also the type of that cause."""
    if branch.after is None:
        return ""
    text = f"{branch.after:.3f} s"
    styled = click.style(f"{text:>{HOP_WIDTH}}", fg="yellow", bold=True) if branch.after >= SLOW else text
    return f"{styled} after {escaped(short(branch.cause))}" if branch.cause else styled


def _attempt(made: Attempt) -> str:
    text = escaped(f"{made.function} {made.seconds * 1000:.0f} ms")
    if made.failed:
        return click.style(escaped(f"{text} {made.status} {made.error}".rstrip()), fg="red")
    return click.style(text, fg="yellow", bold=True) if made.seconds >= SLOW else text


def _missing(function: str) -> str:
    return click.style(f"{function} MISSING", fg="red", bold=True)


def _answered(function: str) -> str:
    return click.style(f"{function} ANSWERED, how long it took is not known", fg="yellow")


def _letter(letter: DeadLetter) -> str:
    text = f"DEAD LETTER {letter.code} from {letter.destination} {letter.data}".rstrip()
    return click.style(escaped(text), fg="red", bold=True)


def table_lines(entries: Iterable[Entry], now: datetime) -> Iterator[str]:
    """Yield a heading, and a row for each event."""
    rows = [HEADINGS, *(_row(entry, now) for entry in entries)]
    if len(rows) == 1:
        yield "No events."
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS) - 1)]
    for row in rows:
        yield "   ".join([*(f"{text:{width}}" for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()


def _row(entry: Entry, now: datetime) -> tuple[str, ...]:
    event, letter = entry.event, entry.dead_letter
    attempts = [_attempt(made) for made in entry.attempts if not made.replay]
    outcomes = [_letter(letter)] if letter else [*attempts, *map(_missing, missing(entry, now))]
    name = maintenance_of(event)[1]
    named = (short(event.get_type()), entry.node, name, str(event.get_id()))
    return (_clock(entry.arrived), *map(escaped, named), ", ".join(outcomes))


def as_json(entry: Entry, now: datetime) -> dict[str, Any]:
    """Return all that is known about an event; `cause` is an event id, from which programs can build a tree."""
    return {
        "seq": entry.seq,
        "arrived": entry.arrived.isoformat(),
        "cause": entry.cause,
        "maintenance": entry.maintenance,
        "node": entry.node,
        "event": _event(entry.event),
        "attempts": [made.as_data() for made in entry.attempts],
        "missing": list(missing(entry, now)),
        "deadLetter": vars(entry.dead_letter) if entry.dead_letter else None,
    }


def _event(event: BaseCloudEvent) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(structured(event).body)
    return fields


def _clock(moment: datetime) -> str:
    """Format the local time with its date, because a journal spans many days."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
