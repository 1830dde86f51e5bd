"""Fills a journal's tables directly with a million events: 2,000 drains of 200 nodes within the last month."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice

import psycopg
from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex

from eventing import events
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS, METADATA
from eventing.journal.store import Journal

COUNT, DRAINS, NODES = 1_000_000, 2000, 200
TYPES = [events.RESOURCE_UPDATED] * 4 + [events.PODS_GONE] * 3 + [events.PODS_EVICTED] * 2 + [events.TICK]
RARE = {500: events.MAINTENANCE_FAILED, 501: events.NODE_DRIFTED}
"""Remainder of an event's number by 1000 → its rare type."""
FAILING, DEAD = 199, 1999
"""Interval, in events, of failed attempts and of dead letters."""
SECONDS = 30 * 86400.0
Row = tuple[object, ...]
Insert = Callable[[Table, Iterable[Row]], None]


def kind(number: int) -> str:
    return RARE.get(number % 1000) or TYPES[number % len(TYPES)]


def drain(number: int) -> int:
    """Return the drain that an event belongs to; neighbouring drains overlap."""
    return min(DRAINS - 1, (number * DRAINS // COUNT + number % 3))


def rows(count: int) -> Iterator[tuple[Row, Row, Row]]:
    """Yield event, body and attempt, with values in the order of the tables' columns."""
    begin = time.time() - SECONDS
    for number in range(count):
        of, key, type_ = drain(number), f"id-{number}", kind(number)
        arrived, node, uid = begin + number * SECONDS / count, f"node-{of % NODES}", f"uid-{of}"
        body = (
            f'{{"specversion": "1.0", "id": "{key}", "source": "/x", "type": "{type_}", "subject": "drain-{of}", '
            f'"node": "{node}", "maintenance": "{uid}", "partitionkey": "{node}", "datacontenttype": '
            f'"application/json", "data": {{"node": "{node}", "podsVersion": "{number}", "evicted": [{{"namespace": '
            f'"default", "name": "web-{number}", "uid": "{number:036}"}}]}}}}'
        )
        destination = "http://evict/" if number % DEAD == 0 else ""
        event = (number + 1, "/x", key, destination, type_, node, uid, f"drain-{of}", arrived, len(body))
        status = 503 if number % FAILING == 0 else 204
        attempt = (key, "/x", "evict", arrived, "", 0.02, status, "[]", "", 2)
        yield event, (number + 1, body), attempt


def load(url: str, count: int = COUNT) -> None:
    """Create a journal and fill it with `count` events."""
    Journal(url).close()
    (_load_postgresql if url.startswith("postgresql") else _load_sqlite)(url, count)


def _load_sqlite(path: str, count: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:

        def insert(table: Table, values: Iterable[Row]) -> None:
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", values)  # noqa: S608 - our tables

        def execute(statement: str) -> None:
            connection.execute(statement)

        _fill(insert, execute, sqlite.dialect(), count)


def _load_postgresql(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:

        def insert(table: Table, values: Iterable[Row]) -> None:
            with connection.cursor().copy(f"COPY {table.name} FROM STDIN".encode()) as copy:
                for value in values:
                    copy.write_row(value)

        def execute(statement: str) -> None:
            connection.execute(statement.encode())

        _fill(insert, execute, postgresql.dialect(), count)  # type: ignore[no-untyped-call]


def _fill(
    insert: Callable[[Table, Iterable[Row]], None], execute: Callable[[str], None], dialect: object, count: int
) -> None:
    """Insert all rows in one transaction, and build the indexes at its end, which is faster."""
    execute("BEGIN")
    indexes = [index for table in METADATA.sorted_tables for index in table.indexes]
    for index in indexes:
        execute(f"DROP INDEX {index.name}")
    some = rows(count)
    while batch := list(islice(some, 50_000)):
        for table, values in zip((EVENTS, BODIES, ATTEMPTS), zip(*batch, strict=True), strict=True):
            insert(table, values)
    for index in indexes:
        execute(str(CreateIndex(index).compile(dialect=dialect)))  # type: ignore[arg-type]
    execute("COMMIT")
    execute("ANALYZE")  # as PostgreSQL's autovacuum does within a minute
