"""What an event and an attempt take in the database, rows and entries of indexes too: what retention by size counts.

Measured on SQLite, whose file stays below twice that; most of it where half of each page is empty.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from eventing.journal.schema import ATTEMPTS, EVENTS

EVENT_ROWS, ATTEMPT_ROWS = 200, 150
"""Bytes beside texts: of an event in `events` and `bodies` with all indexes, of an attempt with its own."""
PAGE, LONG = 4096, 950
"""A key in an index that is longer begins a page that nothing else is on."""


class octet_length(GenericFunction[int]):  # noqa: N801 - as SQL calls it
    """Bytes of a text, where `length` counts characters."""

    type = Integer()
    inherit_cache = True


@compiles(octet_length, "sqlite")
def _bytes(element: octet_length, compiler: SQLCompiler, **more: Any) -> str:
    """SQLite has it by that name since 3.43."""
    return f"length(CAST({compiler.process(element.clauses, **more)} AS BLOB))"


def _key(text: ColumnElement[str]) -> ColumnElement[int]:
    """Bytes of a text in its row and in an index."""
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
