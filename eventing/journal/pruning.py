"""Measures and deletes the oldest events of a journal and the attempts on them, in small transactions. For `store`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from sqlalchemy import ColumnElement, Row, Select, delete, func, select, true, tuple_

from eventing.events import SOURCE
from eventing.journal.database import BUSY_SECONDS, Database
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS
from eventing.journal.sizes import ATTEMPT_SIZE, EVENT_SIZE

SLICE = 1000
"""Events that are deleted in one transaction: a writer waits no longer than for these."""


@dataclass(frozen=True)
class Whose:
    """Events, and the attempts on them, by who emitted them."""

    events: ColumnElement[bool]
    attempts: ColumnElement[bool]


ANYBODY = Whose(true(), true())
OTHERS = Whose(~EVENTS.c.source.startswith(SOURCE), ~ATTEMPTS.c.source.startswith(SOURCE))
"""Events that name none of our programs as their source; `record` takes no other's word for that."""


def taken(database: Database, whose: Whose = ANYBODY) -> int:
    """Bytes of these events and attempts, as `sizes` counts them."""
    with database.reading() as connection:
        return sum(connection.scalar(total) or 0 for total in _totals(whose.events, whose.attempts))


def delete_oldest(database: Database, whose: Whose, *, before: float = inf, enough: float = inf) -> int:
    """Delete the oldest of these events that arrived before then, until that frees `enough`; returns how many."""
    count = 0
    while enough > 0:
        deleted, freed = _delete_some(database, whose, before, enough)
        count, enough = count + deleted, enough - freed
        if not deleted:
            break
    return count


def _delete_some(database: Database, whose: Whose, before: float, enough: float) -> tuple[int, int]:
    """Delete some of them, with the attempts on them, or of their time where it is all; how many, and the bytes."""
    with database.writing(crowded=BUSY_SECONDS) as connection:  # whose thread has nobody to answer
        edge = _edge(connection.execute(_oldest(before, whose)), enough)
        events = (EVENTS.c.arrived <= edge) & whose.events
        keys = select(EVENTS.c.id, EVENTS.c.source).where(events)
        attempts = ATTEMPTS.c.at <= edge if whose is ANYBODY else tuple_(ATTEMPTS.c.event, ATTEMPTS.c.source).in_(keys)
        freed = sum(connection.scalar(total) or 0 for total in _totals(events, attempts))
        connection.execute(delete(BODIES).where(BODIES.c.seq.in_(select(EVENTS.c.seq).where(events))))
        connection.execute(delete(ATTEMPTS).where(attempts))
        return connection.execute(delete(EVENTS).where(events)).rowcount, freed


def _totals(events: ColumnElement[bool], attempts: ColumnElement[bool]) -> tuple[Select[int], Select[int]]:
    return select(func.sum(EVENT_SIZE)).where(events), select(func.sum(ATTEMPT_SIZE)).where(attempts)


def _oldest(before: float, whose: Whose) -> Select[float, int]:
    """Arrival of the oldest of these events that arrived before then, and what each takes with the attempts on it."""
    on_it = select(func.coalesce(func.sum(ATTEMPT_SIZE), 0)).where(
        ATTEMPTS.c.event == EVENTS.c.id, ATTEMPTS.c.source == EVENTS.c.source
    )
    found = select(EVENTS.c.arrived, EVENT_SIZE + on_it.scalar_subquery()).where(
        EVENTS.c.arrived < before, whose.events
    )
    return found.order_by(EVENTS.c.arrived).limit(SLICE)


def _edge(events: Iterable[Row[float, int]], enough: float) -> float:
    """When the event arrived that makes it enough, or the last one."""
    edge, freed = -inf, 0
    for arrived, size in events:
        edge, freed = arrived, freed + size
        if freed >= enough:
            break
    return edge
