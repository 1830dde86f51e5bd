"""From a `Query` to SQL, for both databases alike. Used by `journal`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import ColumnElement, Select, func, or_, select, union_all

from eventing.entries import Query
from eventing.events import MAINTENANCE_FAILED
from eventing.tables import ATTEMPTS, BODIES, DEAD, EVENTS, FAILED


def chosen(query: Query) -> Select[int, float, str]:
    """The number, arrival and body of each event that the query selects, in the order of arrival."""
    seq = EVENTS.c.seq
    found = select(seq, EVENTS.c.arrived).where(*_conditions(query))
    if query.limit:
        found = found.order_by(seq.desc() if query.newest else seq).limit(query.limit)
    rows = found.subquery()
    joined = rows.join(BODIES, BODIES.c.seq == rows.c.seq)
    return select(rows.c.seq, rows.c.arrived, BODIES.c.event).select_from(joined).order_by(rows.c.seq)


def oldest(before: float, count: int) -> Select[float, int]:
    """Arrival and size of the oldest events that arrived before then, at most `count`."""
    found = select(EVENTS.c.arrived, EVENTS.c.size).where(EVENTS.c.arrived < before)
    return found.order_by(EVENTS.c.arrived).limit(count)


def _conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    if query.node:
        yield EVENTS.c.node == query.node
    if query.maintenance:
        yield or_(EVENTS.c.maintenance == query.maintenance, EVENTS.c.name == query.maintenance)
    if query.types:
        yield EVENTS.c.type.in_(query.types)
    if query.ids:
        yield EVENTS.c.id.in_(query.ids)
    if query.since:
        yield from _within(EVENTS.c.arrived >= query.since.timestamp(), func.min, operator.ge)
    if query.until:
        yield from _within(EVENTS.c.arrived < query.until.timestamp(), func.max, operator.le)
    if query.dead:
        yield DEAD
    if query.failed:
        yield EVENTS.c.seq.in_(_failed())
    if query.after:
        yield EVENTS.c.seq > query.after


def _within(
    arrived: ColumnElement[bool], end: Callable[..., Any], beyond: Callable[..., ColumnElement[bool]]
) -> Iterator[ColumnElement[bool]]:
    """The condition on arrival, and the bound on `seq` that follows from it: found once, by the index on arrival.

    Otherwise a search in the order of `seq` reads every event up to that time. An import may put old events after new
    ones, so the bound alone is not enough. `+ 0` keeps both databases from finding it by reading those events, too.
    """
    yield arrived
    yield beyond(EVENTS.c.seq, select(end(EVENTS.c.seq + 0)).where(arrived).scalar_subquery())


def _failed() -> Select[int]:
    """Numbers of the failed events. Begins with those, which are few, whatever else is asked."""
    attempted = EVENTS.join(ATTEMPTS, (EVENTS.c.id == ATTEMPTS.c.event) & (EVENTS.c.source == ATTEMPTS.c.source))
    kinds = (
        select(EVENTS.c.seq).where(EVENTS.c.type == MAINTENANCE_FAILED),
        select(EVENTS.c.seq).where(DEAD),
        select(EVENTS.c.seq).select_from(attempted).where(FAILED),
    )
    return select(union_all(*kinds).subquery().c.seq)
