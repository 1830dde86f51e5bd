"""Reads many events for a list in bounded memory: all attributes, but limited data. Used by `store`.

Parsed data takes up to twenty times its size. Anyone who can post events could post several events of a few MiB.
Parsing all of them at once would exhaust the reader's memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from sqlalchemy import Row, Select, func, select

from eventing.journal.entries import Query
from eventing.journal.query_builder import select_events
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS
from eventing.journal.sizes import ATTEMPT_SIZE

HEAD_CHARACTERS = 4096
"""Number of characters to read from the start of each event (its head); few events are longer."""
BODY_CAPACITY_CHARACTERS = 4 * 1024 * 1024
"""Maximum total size of the events longer than `HEAD_CHARACTERS` that a list includes in full, in characters."""
DATA_PATTERN = re.compile(r', "data(_base64)?": ')
"""Matches the start of the data in an event written by the journal; quotes in attributes are escaped."""


def select_event_heads(query: Query) -> Select[Any]:
    """Build the query that returns each event's number, arrival time, head, size, source, id and type, by number."""
    selected = select_events(query, func.substr(BODIES.c.event, 1, HEAD_CHARACTERS).label("head")).subquery()
    columns = (EVENTS.c.size, EVENTS.c.source, EVENTS.c.id, EVENTS.c.type)
    return select(selected, *columns).join(EVENTS, EVENTS.c.seq == selected.c.seq).order_by(selected.c.seq)


def choose_long_events(rows: Iterable[Row[Any]], capacity: int) -> list[int]:
    """Return the numbers of the long events that fit into `capacity` together, in the order of the rows.

    An event is long if it exceeds `HEAD_CHARACTERS`.
    """
    numbers = []
    for row in rows:
        if HEAD_CHARACTERS < row.size <= capacity:
            numbers.append(row.seq)
            capacity -= row.size
    return numbers


def select_bodies(seqs: Sequence[int]) -> Select[int, str]:
    """Build the query that returns the number and body of the events with the numbers `seqs`."""
    return select(BODIES.c.seq, BODIES.c.event).where(BODIES.c.seq.in_(seqs))


def select_sizes(query: Query) -> Select[int, int]:
    """Build the query that returns the number of each selected event, and its size including its attempts.

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
    """Build the event from its first `HEAD_CHARACTERS` characters; a longer event has no data.

    If the attributes alone are longer than the head, the event has only id, source and type.
    """
    if row.size <= HEAD_CHARACTERS:
        return JSONFormat().read(None, row.head)
    if match := DATA_PATTERN.search(row.head):
        return JSONFormat().read(None, row.head[: match.start()] + "}")
    return CloudEvent({"id": row.id, "source": row.source, "type": row.type})
