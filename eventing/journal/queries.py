"""Builds the SQL statements that read the journal, identical for SQLite and PostgreSQL; used by `store`.

A list of many events must need a limited amount of memory. Parsed data takes up to twenty times its size, and a client
that can post events could post several of a few MiB. A list therefore contains all attributes, but only limited data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from sqlalchemy import ColumnElement, Row, Select, exists, func, or_, select, union_all

from eventing.events import FAILURE_TYPES
from eventing.journal.entries import REDRIVE_PREFIX, SHORT_ID_CHARACTERS, Query
from eventing.journal.schema import ATTEMPT_SIZE, ATTEMPTS, BODIES, EVENTS, IS_DEAD_LETTER, IS_FAILED_ATTEMPT

MAX_SEQ = 2**63 - 1
"""The largest value of a `seq` column."""
HEAD_CHARACTERS = 4096
"""Number of characters to read from the start of each event (the event's head); few events are longer."""
BODY_CAPACITY_CHARACTERS = 4 * 1024 * 1024
"""Maximum total size, in characters, of the events longer than `HEAD_CHARACTERS` that a list contains in full."""
DATA_PATTERN = re.compile(r', "data(_base64)?": ')
"""Matches the start of the data in an event that the journal has serialized; quotes in attributes are escaped."""


def select_events(query: Query, body_column: ColumnElement[str] = BODIES.c.event) -> Select[int, float, str]:
    """Build the query for the number, arrival time and body of each selected event, ordered by number."""
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
    filters = ((EVENTS.c.type, query.types), (EVENTS.c.seq, query.seqs), (EVENTS.c.id, query.ids))
    yield from (column.in_(values) for column, values in filters if values)
    if query.short_id:
        yield func.substr(EVENTS.c.id, 1, SHORT_ID_CHARACTERS) == query.short_id
    yield from _build_time_conditions(query)
    if query.dead_letters_only:
        yield IS_DEAD_LETTER
    if query.awaiting_redrive:
        yield ~_build_redriven_condition()
    if query.failed:
        yield EVENTS.c.seq.in_(_select_failed_events())
    if query.after_seq:
        yield EVENTS.c.seq > min(query.after_seq, MAX_SEQ)
    if query.before_seq:
        yield EVENTS.c.seq < min(query.before_seq, MAX_SEQ)


def _build_time_conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on the arrival time, with bounds on `seq` that the database finds with the arrival index.

    Without these bounds, a search in the order of `seq` would read every event up to that time. The bounds alone are
    not sufficient, because an import may append old events after new ones. Queries for few events need no bounds. `+ 0`
    prevents both databases from computing the bounds by reading events in the order of `seq`.
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
    """Build the condition that a dead letter was redriven successfully or discarded.

    The last path segment of the dead letter's destination must be the function that accepted the dead letter. If the
    destination of a discarded dead letter is not a function's URL, the attempt contains the destination itself.
    """
    address, name = func.rtrim(EVENTS.c.destination, "/"), ATTEMPTS.c.function
    is_accepted = ATTEMPTS.c.replay.startswith(REDRIVE_PREFIX) & (ATTEMPTS.c.status < 400)
    is_function = func.substr(address, func.length(address) - func.length(name)) == "/" + name
    is_destination = is_function | (name == EVENTS.c.destination)
    return exists().where(
        ATTEMPTS.c.event == EVENTS.c.id, ATTEMPTS.c.source == EVENTS.c.source, is_accepted, is_destination
    )


def _select_failed_events() -> Select[int]:
    """Build the query for the numbers of failed events.

    A failed attempt does not count if the same function succeeded after it had begun, as in `list_unresolved_failures`.
    It does not count either if the event's dead letter was redriven successfully or discarded, and neither does that
    dead letter. The query starts from the failures, because these are few regardless of the other conditions.
    """
    attempted = EVENTS.join(ATTEMPTS, (EVENTS.c.id == ATTEMPTS.c.event) & (EVENTS.c.source == ATTEMPTS.c.source))
    later = ATTEMPTS.alias("later")
    has_later_success = exists().where(
        *(later.c[key] == ATTEMPTS.c[key] for key in ("event", "source", "function")),
        or_(later.c.replay == ATTEMPTS.c.replay, later.c.replay.startswith(REDRIVE_PREFIX)),
        later.c.at + later.c.seconds > ATTEMPTS.c.at,
        later.c.status < 400,
    )
    selections = (
        select(EVENTS.c.seq).where(EVENTS.c.type.in_(FAILURE_TYPES)),
        select(EVENTS.c.seq).where(IS_DEAD_LETTER, ~_build_redriven_condition()),
        select(EVENTS.c.seq).select_from(attempted).where(~IS_DEAD_LETTER, IS_FAILED_ATTEMPT, ~has_later_success),
    )
    return select(union_all(*selections).subquery().c.seq)


def select_event_heads(query: Query) -> Select[Any]:
    """Build the query for each event's number, arrival time, head, size, source, id and type, ordered by number."""
    selected = select_events(query, func.substr(BODIES.c.event, 1, HEAD_CHARACTERS).label("head")).subquery()
    columns = (EVENTS.c.size, EVENTS.c.source, EVENTS.c.id, EVENTS.c.type)
    return select(selected, *columns).join(EVENTS, EVENTS.c.seq == selected.c.seq).order_by(selected.c.seq)


def select_long_event_numbers(rows: Iterable[Row[Any]], capacity: int) -> list[int]:
    """Return the numbers of the long events that together fit into `capacity`, in the order of the rows.

    An event is long if it has more than `HEAD_CHARACTERS` characters.
    """
    numbers = []
    for row in rows:
        if HEAD_CHARACTERS < row.size <= capacity:
            numbers.append(row.seq)
            capacity -= row.size
    return numbers


def select_bodies(seqs: Sequence[int]) -> Select[int, str]:
    """Build the query for the number and body of the events with these numbers."""
    return select(BODIES.c.seq, BODIES.c.event).where(BODIES.c.seq.in_(seqs))


def select_sizes(query: Query) -> Select[int, int]:
    """Build the query for each selected event's number, and its size including its attempts.

    The rows are in order of arrival, which may differ from the order of the numbers.
    """
    selected = select_events(query, BODIES.c.seq.label("body")).subquery()
    attempts_size = select(func.coalesce(func.sum(ATTEMPT_SIZE), 0)).where(
        ATTEMPTS.c.event == EVENTS.c.id, ATTEMPTS.c.source == EVENTS.c.source
    )
    size = EVENTS.c.size + attempts_size.scalar_subquery()
    joined = select(EVENTS.c.seq, size).join(selected, EVENTS.c.seq == selected.c.seq)
    return joined.order_by(EVENTS.c.arrived, EVENTS.c.seq)


def parse_event_head(row: Row[Any]) -> BaseCloudEvent:
    """Parse an event from its head, which is its first `HEAD_CHARACTERS` characters; a longer event gets no data.

    If the attributes alone are longer than the head, the result has only an id, a source and a type.
    """
    if row.size <= HEAD_CHARACTERS:
        return JSONFormat().read(None, row.head)
    if match := DATA_PATTERN.search(row.head):
        return JSONFormat().read(None, row.head[: match.start()] + "}")
    return CloudEvent({"id": row.id, "source": row.source, "type": row.type})
