"""Bytes that an event or an attempt takes in the database, with rows and index entries, for retention by size.

Measured on SQLite. The file is at most twice as large, mostly because index pages may be half empty.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from eventing.journal.schema import ATTEMPTS, EVENTS

EVENT_ROWS, ATTEMPT_ROWS = 200, 150
"""Bytes of an event and of an attempt, including all index entries, in addition to their texts."""
PAGE, LONG = 4096, 950
"""Bytes of a page, and of the longest index key that does not start an overflow page of its own."""


class octet_length(GenericFunction[int]):  # noqa: N801 - as SQL calls it
    """SQL function: the bytes of a text, whereas `length` counts characters."""

    type = Integer()
    inherit_cache = True


@compiles(octet_length, "sqlite")
def _bytes(element: octet_length, compiler: SQLCompiler, **more: Any) -> str:
    """Compile `octet_length` for SQLite, which has a function of this name only since 3.43."""
    return f"length(CAST({compiler.process(element.clauses, **more)} AS BLOB))"


def _key(text: ColumnElement[str]) -> ColumnElement[int]:
    """Return the bytes of a text in its row and in an index."""
    length = octet_length(text)
    return 2 * length + (length + (PAGE - LONG)) // PAGE * PAGE


_EVENT, _ATTEMPT = EVENTS.c, ATTEMPTS.c
EVENT_SIZE: ColumnElement[int] = (
    EVENT_ROWS
    + _EVENT.size
    + _key(_EVENT.id + _EVENT.source + _EVENT.destination)
    + 2 * octet_length(_EVENT.type + _EVENT.node + _EVENT.maintenance + _EVENT.name)
)
ATTEMPT_SIZE: ColumnElement[int] = (
    ATTEMPT_ROWS + _ATTEMPT.size + _key(_ATTEMPT.event + _ATTEMPT.source + _ATTEMPT.function + _ATTEMPT.replay)
)
