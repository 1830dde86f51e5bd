"""Builds the SQL of a `Query`, the same for both databases. Used by `store`."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Select, exists, func, literal_column, or_, select, union_all

from eventing.events import MAINTENANCE_FAILED, RUN_STOPPED
from eventing.journal.entries import REDRIVE, Query
from eventing.journal.schema import ATTEMPTS, BODIES, DEAD, EVENTS, FAILED

LAST = 2**63 - 1
"""The largest value of a `seq` column."""


def selected(query: Query, body: ColumnElement[str] = BODIES.c.event) -> Select[int, float, str]:
    """Build the query for number, arrival and body of each selected event, ordered by number."""
    seq = EVENTS.c.seq
    found = select(seq, EVENTS.c.arrived).where(*_conditions(query))
    if query.limit:
        found = found.order_by(seq.desc() if query.newest else seq).limit(query.limit)
    rows = found.subquery()
    joined = rows.join(BODIES, BODIES.c.seq == rows.c.seq)
    return select(rows.c.seq, rows.c.arrived, body).select_from(joined).order_by(rows.c.seq)


def _conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    if query.node:
        yield EVENTS.c.node == query.node
    if query.maintenance:
        yield or_(EVENTS.c.maintenance == query.maintenance, EVENTS.c.name == query.maintenance)
    if query.maintained:
        yield EVENTS.c.maintenance != literal_column("''")
    chosen = ((EVENTS.c.type, query.types), (EVENTS.c.seq, query.numbers), (EVENTS.c.id, query.ids))
    yield from (column.in_(values) for column, values in chosen if values)
    yield from _times(query)
    if query.dead:
        yield DEAD
    if query.open:
        yield ~_redriven()
    if query.failed:
        yield EVENTS.c.seq.in_(_failed())
    if query.after:
        yield EVENTS.c.seq > min(query.after, LAST)


def _times(query: Query) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on arrival, with bounds on `seq` that the database finds by the index on arrival.

    Without these bounds a search in the order of `seq` reads every event up to that time. The bounds alone are not
    enough, because an import may append old events after new ones. Queries for few events need no bounds. `+ 0` keeps
    both databases from computing the bounds by reading the events in the order of `seq`.
    """
    seq, arrived = EVENTS.c.seq, EVENTS.c.arrived
    few = query.failed or query.dead or query.ids or query.numbers
    if query.since:
        late = arrived >= query.since.timestamp()
        yield late if few else late & (seq >= select(func.min(seq + 0)).where(late).scalar_subquery())
    if query.until:
        early = arrived < query.until.timestamp()
        yield early if few else early & (seq <= select(func.max(seq + 0)).where(early).scalar_subquery())


def _redriven() -> ColumnElement[bool]:
    """Build the condition that a dead letter was redriven successfully.

    The function that accepted it must be the one that the last path segment of its destination names.
    """
    address, name = func.rtrim(EVENTS.c.destination, "/"), ATTEMPTS.c.function
    taken = ATTEMPTS.c.replay.startswith(REDRIVE) & (ATTEMPTS.c.status < 400)
    named = func.substr(address, func.length(address) - func.length(name)) == "/" + name
    return exists().where(ATTEMPTS.c.event == EVENTS.c.id, ATTEMPTS.c.source == EVENTS.c.source, taken, named)


def _failed() -> Select[int]:
    """Build the query for the numbers of failed events.

    It starts from the failures, because they are few whatever the other conditions select.
    """
    attempted = EVENTS.join(ATTEMPTS, (EVENTS.c.id == ATTEMPTS.c.event) & (EVENTS.c.source == ATTEMPTS.c.source))
    kinds = (
        select(EVENTS.c.seq).where(EVENTS.c.type.in_((MAINTENANCE_FAILED, RUN_STOPPED))),
        select(EVENTS.c.seq).where(DEAD),
        select(EVENTS.c.seq).select_from(attempted).where(FAILED),
    )
    return select(union_all(*kinds).subquery().c.seq)
