"""Builds the SQL statement for a `Query`, identical for SQLite and PostgreSQL. Used by `store`."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Select, exists, func, literal_column, or_, select, union_all

from eventing.events import FAILURE_TYPES
from eventing.journal.entries import REDRIVE_PREFIX, Query
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS, IS_DEAD_LETTER, IS_FAILED_ATTEMPT

MAX_SEQ = 2**63 - 1
"""The largest value of a `seq` column."""


def select_events(query: Query, body_column: ColumnElement[str] = BODIES.c.event) -> Select[int, float, str]:
    """Build the query that returns number, arrival and body of each selected event, ordered by number."""
    seq = EVENTS.c.seq
    selected = select(seq, EVENTS.c.arrived).where(*_build_conditions(query))
    if query.limit:
        selected = selected.order_by(seq.desc() if query.keep_newest else seq).limit(query.limit)
    rows = selected.subquery()
    joined = rows.join(BODIES, BODIES.c.seq == rows.c.seq)
    return select(rows.c.seq, rows.c.arrived, body_column).select_from(joined).order_by(rows.c.seq)


def _build_conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    if query.node:
        yield EVENTS.c.node == query.node
    if query.maintenance:
        yield or_(EVENTS.c.maintenance == query.maintenance, EVENTS.c.name == query.maintenance)
    if query.has_object:
        yield EVENTS.c.maintenance != literal_column("''")
    filters = ((EVENTS.c.type, query.types), (EVENTS.c.seq, query.seqs), (EVENTS.c.id, query.ids))
    yield from (column.in_(values) for column, values in filters if values)
    yield from _build_time_conditions(query)
    if query.dead_letters_only:
        yield IS_DEAD_LETTER
    if query.awaiting_redrive:
        yield ~_build_redriven_condition()
    if query.failed:
        yield EVENTS.c.seq.in_(_select_failed_events())
    if query.after_seq:
        yield EVENTS.c.seq > min(query.after_seq, MAX_SEQ)


def _build_time_conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on arrival, with bounds on `seq` that the database finds with the index on arrival.

    Without these bounds a search in the order of `seq` reads every event up to that time. The bounds alone are not
    enough, because an import may append old events after new ones. Queries for few events need no bounds. `+ 0` keeps
    both databases from computing the bounds by reading the events in the order of `seq`.
    """
    seq, arrived = EVENTS.c.seq, EVENTS.c.arrived
    is_selective = query.failed or query.dead_letters_only or query.ids or query.seqs
    if query.since:
        since_condition = arrived >= query.since.timestamp()
        first_seq = select(func.min(seq + 0)).where(since_condition).scalar_subquery()
        yield since_condition if is_selective else since_condition & (seq >= first_seq)
    if query.until:
        until_condition = arrived < query.until.timestamp()
        last_seq = select(func.max(seq + 0)).where(until_condition).scalar_subquery()
        yield until_condition if is_selective else until_condition & (seq <= last_seq)


def _build_redriven_condition() -> ColumnElement[bool]:
    """Build the condition that a dead letter was redriven successfully.

    The last path segment of the dead letter's destination must be the function that accepted the dead letter.
    """
    address, name = func.rtrim(EVENTS.c.destination, "/"), ATTEMPTS.c.function
    is_accepted = ATTEMPTS.c.replay.startswith(REDRIVE_PREFIX) & (ATTEMPTS.c.status < 400)
    is_destination = func.substr(address, func.length(address) - func.length(name)) == "/" + name
    return exists().where(
        ATTEMPTS.c.event == EVENTS.c.id, ATTEMPTS.c.source == EVENTS.c.source, is_accepted, is_destination
    )


def _select_failed_events() -> Select[int]:
    """Build the query that returns the numbers of failed events.

    The query starts from the failures, because there are few of them, regardless of the other conditions.
    """
    attempted = EVENTS.join(ATTEMPTS, (EVENTS.c.id == ATTEMPTS.c.event) & (EVENTS.c.source == ATTEMPTS.c.source))
    selections = (
        select(EVENTS.c.seq).where(EVENTS.c.type.in_(FAILURE_TYPES)),
        select(EVENTS.c.seq).where(IS_DEAD_LETTER),
        select(EVENTS.c.seq).select_from(attempted).where(IS_FAILED_ATTEMPT),
    )
    return select(union_all(*selections).subquery().c.seq)
