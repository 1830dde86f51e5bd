"""Estimates the bytes that an event or attempt takes in rows and index entries, for retention by size.

The numbers were measured on SQLite. The file is at most twice as large, mostly because index pages may be half empty.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from eventing.journal.schema import ATTEMPTS, EVENTS

EVENT_OVERHEAD_BYTES, ATTEMPT_OVERHEAD_BYTES = 200, 150
"""Bytes that each event and each attempt takes in addition to its texts, including all index entries."""
PAGE_BYTES, MAX_SHARED_KEY_BYTES = 4096, 950
"""Bytes of a SQLite page, and of the longest index key that needs no overflow page."""


class octet_length(GenericFunction[int]):  # noqa: N801 - the SQL function's name
    """SQL function that returns the number of bytes in a text, whereas `length` counts characters."""

    type = Integer()
    inherit_cache = True


@compiles(octet_length, "sqlite")
def _compile_octet_length(element: octet_length, compiler: SQLCompiler, **kwargs: Any) -> str:
    """Compile `octet_length` for SQLite, which has a function of this name only since 3.43."""
    return f"length(CAST({compiler.process(element.clauses, **kwargs)} AS BLOB))"


def _estimate_key_bytes(text: ColumnElement[str]) -> ColumnElement[int]:
    """Build the expression for the bytes that a text takes in its row and in an index."""
    length = octet_length(text)
    return 2 * length + (length + (PAGE_BYTES - MAX_SHARED_KEY_BYTES)) // PAGE_BYTES * PAGE_BYTES


_EVENT_COLUMNS, _ATTEMPT_COLUMNS = EVENTS.c, ATTEMPTS.c
EVENT_SIZE: ColumnElement[int] = (
    EVENT_OVERHEAD_BYTES
    + _EVENT_COLUMNS.size
    + _estimate_key_bytes(_EVENT_COLUMNS.id + _EVENT_COLUMNS.source + _EVENT_COLUMNS.destination)
    + 2 * octet_length(_EVENT_COLUMNS.type + _EVENT_COLUMNS.node + _EVENT_COLUMNS.maintenance + _EVENT_COLUMNS.name)
)
ATTEMPT_SIZE: ColumnElement[int] = (
    ATTEMPT_OVERHEAD_BYTES
    + _ATTEMPT_COLUMNS.size
    + _estimate_key_bytes(
        _ATTEMPT_COLUMNS.event + _ATTEMPT_COLUMNS.source + _ATTEMPT_COLUMNS.function + _ATTEMPT_COLUMNS.replay
    )
)
