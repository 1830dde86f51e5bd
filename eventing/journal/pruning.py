"""Measures a journal, and deletes its oldest events and attempts in small transactions; used by `store`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from sqlalchemy import ColumnElement, Select, delete, exists, func, select, true

from eventing.events import SOURCE_PREFIX
from eventing.journal.database import BUSY_TIMEOUT_SECONDS, Database
from eventing.journal.schema import ATTEMPT_SIZE, ATTEMPTS, BODIES, EVENT_SIZE, EVENTS

MAX_BATCH_ROWS = 1000
"""Maximum number of events and attempts to delete per transaction, which limits how long writers wait."""


@dataclass(frozen=True)
class EmitterFilter:
    """SQL conditions that select events and attempts by the component that emitted the event."""

    events: ColumnElement[bool]
    attempts: ColumnElement[bool]


ALL_EMITTERS = EmitterFilter(true(), true())
_IS_OWN_EVENT = func.substr(EVENTS.c.source, 1, len(SOURCE_PREFIX)) == SOURCE_PREFIX
_IS_ON_OWN_EVENT = exists().where(EVENTS.c.id == ATTEMPTS.c.event, EVENTS.c.source == ATTEMPTS.c.source, _IS_OWN_EVENT)
FOREIGN_EMITTERS = EmitterFilter(~_IS_OWN_EVENT, ~_IS_ON_OWN_EVENT)
"""Selects events from sources outside this project, and all attempts except those for a recorded own event.

`record` verifies the source of the events that it accepts. A function processes any event that is posted to it, so an
attempt proves nothing about the event's source.
"""


def measure_bytes(database: Database, emitters: EmitterFilter = ALL_EMITTERS) -> int:
    """Return the total size, in bytes, of the selected events and attempts, as `schema` computes it."""
    with database.connect() as connection:
        return sum(connection.scalar(total) or 0 for total in _select_total_bytes(emitters.events, emitters.attempts))


def delete_oldest(
    database: Database, emitters: EmitterFilter, *, end: float = inf, min_freed_bytes: float = inf
) -> tuple[int, int]:
    """Delete the oldest selected events and attempts from before `end`, until `min_freed_bytes` bytes are freed.

    An attempt's age is determined by its start time, whether or not its event was recorded. Returns the number of
    deleted events, and the size of the deleted events and attempts in bytes.
    """
    count, freed, first = 0, 0, -inf
    while freed < min_freed_bytes and (oldest := _read_oldest(database, emitters, first, end)):
        last = _find_deletion_cutoff(oldest, min_freed_bytes - freed)
        deleted, size = _delete_between(database, emitters, oldest[0][0], last)
        count, freed, first = count + deleted, freed + size, last
    return count, freed


def _read_oldest(database: Database, emitters: EmitterFilter, start: float, end: float) -> list[tuple[float, int]]:
    """Return the time and size of the oldest selected events and attempts between `start` and `end`."""
    events = _select_by_time(EVENTS.c.arrived, EVENT_SIZE, start, end).where(emitters.events)
    attempts = _select_by_time(ATTEMPTS.c.at, ATTEMPT_SIZE, start, end).where(emitters.attempts)
    with database.connect() as connection:
        oldest = [(at, size) for query in (events, attempts) for at, size in connection.execute(query)]
    return sorted(oldest)[:MAX_BATCH_ROWS]


def _select_by_time(at: ColumnElement[float], size: ColumnElement[int], start: float, end: float) -> Select[float, int]:
    return select(at, size).where(at >= start, at < end).order_by(at).limit(MAX_BATCH_ROWS)


def _find_deletion_cutoff(rows: Iterable[tuple[float, int]], min_freed_bytes: float) -> float:
    """Return the time up to which deleting rows frees `min_freed_bytes`; the last row's time if no time does."""
    last_time, freed = -inf, 0
    for at, size in rows:
        last_time, freed = at, freed + size
        if freed >= min_freed_bytes:
            break
    return last_time


def _delete_between(database: Database, emitters: EmitterFilter, start: float, end: float) -> tuple[int, int]:
    """Delete the selected events and attempts from `start` to `end`; return the event count and the freed bytes."""
    events = EVENTS.c.arrived.between(start, end) & emitters.events
    attempts = ATTEMPTS.c.at.between(start, end) & emitters.attempts
    # The pruning thread handles no request, so it may wait for the lock.
    with database.begin(contended_timeout=BUSY_TIMEOUT_SECONDS) as connection:
        freed = sum(connection.scalar(total) or 0 for total in _select_total_bytes(events, attempts))
        connection.execute(delete(BODIES).where(BODIES.c.seq.in_(select(EVENTS.c.seq).where(events))))
        connection.execute(delete(ATTEMPTS).where(attempts))
        return connection.execute(delete(EVENTS).where(events)).rowcount, freed


def _select_total_bytes(events: ColumnElement[bool], attempts: ColumnElement[bool]) -> tuple[Select[int], Select[int]]:
    return select(func.sum(EVENT_SIZE)).where(events), select(func.sum(ATTEMPT_SIZE)).where(attempts)
