"""Measures a journal, and deletes its oldest events and attempts in small transactions. Used by `store`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from sqlalchemy import ColumnElement, Select, delete, exists, func, select, true

from eventing.events import SOURCE
from eventing.journal.database import BUSY_SECONDS, Database
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS
from eventing.journal.sizes import ATTEMPT_SIZE, EVENT_SIZE

SLICE = 1000
"""Events and attempts deleted per transaction, which limits how long a writer waits."""


@dataclass(frozen=True)
class Whose:
    """Conditions that select events and attempts by the emitter of the event."""

    events: ColumnElement[bool]
    attempts: ColumnElement[bool]


ANYBODY = Whose(true(), true())
_OURS = func.substr(EVENTS.c.source, 1, len(SOURCE)) == SOURCE
_ON_OURS = exists().where(EVENTS.c.id == ATTEMPTS.c.event, EVENTS.c.source == ATTEMPTS.c.source, _OURS)
OTHERS = Whose(~_OURS, ~_ON_OURS)
"""Events from sources outside this project, and attempts except those on a recorded event of this project.

`record` verifies the source of the events that it accepts. A function runs on any event that is posted to it, so an
attempt proves nothing about the event's source.
"""


def taken(database: Database, whose: Whose = ANYBODY) -> int:
    """Return the bytes of these events and attempts, as `sizes` counts them."""
    with database.reading() as connection:
        return sum(connection.scalar(total) or 0 for total in _totals(whose.events, whose.attempts))


def delete_oldest(database: Database, whose: Whose, *, before: float = inf, enough: float = inf) -> tuple[int, int]:
    """Delete the oldest of these events and attempts before the time `before`, until `enough` bytes are freed.

    An attempt's own time counts, whether its event was recorded or not. Returns the number of deleted events, and the
    bytes of the deleted events and attempts.
    """
    count, freed, first = 0, 0, -inf
    while freed < enough and (found := _oldest(database, whose, first, before)):
        last = _edge(found, enough - freed)
        deleted, size = _delete_between(database, whose, found[0][0], last)
        count, freed, first = count + deleted, freed + size, last
    return count, freed


def _oldest(database: Database, whose: Whose, first: float, before: float) -> list[tuple[float, int]]:
    """Return time and size of the oldest of these events and attempts, from `first` until `before`."""
    events = _by_time(EVENTS.c.arrived, EVENT_SIZE, first, before).where(whose.events)
    attempts = _by_time(ATTEMPTS.c.at, ATTEMPT_SIZE, first, before).where(whose.attempts)
    with database.reading() as connection:
        found = [(at, size) for query in (events, attempts) for at, size in connection.execute(query)]
    return sorted(found)[:SLICE]


def _by_time(at: ColumnElement[float], size: ColumnElement[int], first: float, before: float) -> Select[float, int]:
    return select(at, size).where(at >= first, at < before).order_by(at).limit(SLICE)


def _edge(found: Iterable[tuple[float, int]], enough: float) -> float:
    """Return the time at which the accumulated size reaches `enough`, or the last time."""
    edge, freed = -inf, 0
    for at, size in found:
        edge, freed = at, freed + size
        if freed >= enough:
            break
    return edge


def _delete_between(database: Database, whose: Whose, first: float, last: float) -> tuple[int, int]:
    """Delete these events and attempts from `first` to `last`; return the number of events, and all bytes."""
    events = EVENTS.c.arrived.between(first, last) & whose.events
    attempts = ATTEMPTS.c.at.between(first, last) & whose.attempts
    with database.writing(crowded=BUSY_SECONDS) as connection:  # this thread serves no request, so it may wait
        freed = sum(connection.scalar(total) or 0 for total in _totals(events, attempts))
        connection.execute(delete(BODIES).where(BODIES.c.seq.in_(select(EVENTS.c.seq).where(events))))
        connection.execute(delete(ATTEMPTS).where(attempts))
        return connection.execute(delete(EVENTS).where(events)).rowcount, freed


def _totals(events: ColumnElement[bool], attempts: ColumnElement[bool]) -> tuple[Select[int], Select[int]]:
    return select(func.sum(EVENT_SIZE)).where(events), select(func.sum(ATTEMPT_SIZE)).where(attempts)
