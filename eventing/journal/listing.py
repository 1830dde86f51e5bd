"""Reads many events for a list in bounded memory: their attributes all, their data while there is room. For `store`.

Data that is read takes up to twenty times its bytes; a few events of some MiB, which anybody may post, are enough to
kill who reads all of them at once.
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
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS
from eventing.journal.searching import selected
from eventing.journal.sizes import ATTEMPT_SIZE

HEAD = 4096
"""Characters of every event; few are longer."""
ROOM = 4 * 1024 * 1024
"""Characters of those events in a list that are longer and come whole."""
DATA = re.compile(r', "data(_base64)?": ')
"""Where the data begins of an event that the journal has written: in an attribute the quotes are escaped."""


def heads(query: Query) -> Select[Any]:
    """Number, arrival, head, size, source, id and type of each event selected, in the order of arrival."""
    found = selected(query, func.substr(BODIES.c.event, 1, HEAD).label("head")).subquery()
    columns = (EVENTS.c.size, EVENTS.c.source, EVENTS.c.id, EVENTS.c.type)
    return select(found, *columns).join(EVENTS, EVENTS.c.seq == found.c.seq).order_by(found.c.seq)


def long_and_whole(rows: Iterable[Row[Any]], room: int) -> list[int]:
    """Numbers of the events beyond their head for which there is room, the last first."""
    numbers = []
    for row in rows:
        if HEAD < row.size <= room:
            numbers.append(row.seq)
            room -= row.size
    return numbers


def whole(numbers: Sequence[int]) -> Select[int, str]:
    """Number and body of each."""
    return select(BODIES.c.seq, BODIES.c.event).where(BODIES.c.seq.in_(numbers))


def sizes(query: Query) -> Select[int, int]:
    """Number of each event selected, and its size with that of the attempts on it, in the order of arrival, which that
    of the numbers is not always."""
    found = selected(query, BODIES.c.seq.label("body")).subquery()
    on_it = select(func.coalesce(func.sum(ATTEMPT_SIZE), 0)).where(
        ATTEMPTS.c.event == EVENTS.c.id, ATTEMPTS.c.source == EVENTS.c.source
    )
    size = EVENTS.c.size + on_it.scalar_subquery()
    joined = select(EVENTS.c.seq, size).join(found, EVENTS.c.seq == found.c.seq)
    return joined.order_by(EVENTS.c.arrived, EVENTS.c.seq)


def short(row: Row[Any]) -> BaseCloudEvent:
    """The event as far as its head goes: whole, or without data, or where its attributes are longer what names it."""
    if row.size <= HEAD:
        return JSONFormat().read(None, row.head)
    if found := DATA.search(row.head):
        return JSONFormat().read(None, row.head[: found.start()] + "}")
    return CloudEvent({"id": row.id, "source": row.source, "type": row.type})
