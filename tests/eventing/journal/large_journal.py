"""Fills a journal's tables directly with a million events: 2,000 drains on 200 nodes within the last month."""

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

EVENT_COUNT, DRAIN_COUNT, NODE_COUNT = 1_000_000, 2000, 200
TYPES = [events.RESOURCE_UPDATED] * 4 + [events.PODS_GONE] * 3 + [events.PODS_EVICTED] * 2 + [events.TICK]
RARE_TYPES = {500: events.MAINTENANCE_STEP_FAILED, 501: events.NODE_DRIFTED}
"""Map from event number modulo 1000 to the type of a rare event; all other events have one of `TYPES`."""
FAILED_ATTEMPT_INTERVAL, DEAD_LETTER_INTERVAL = 199, 1999
"""Every 199th event has a failed attempt, and every 1999th event is a dead letter."""
PERIOD_SECONDS = 30 * 86400.0
Row = tuple[object, ...]
Insert = Callable[[Table, Iterable[Row]], None]


def get_event_type(event_number: int) -> str:
    return RARE_TYPES.get(event_number % 1000) or TYPES[event_number % len(TYPES)]


def get_drain_number(event_number: int) -> int:
    """Return the number of the drain that the event belongs to; successive drains overlap in time."""
    return min(DRAIN_COUNT - 1, (event_number * DRAIN_COUNT // EVENT_COUNT + event_number % 3))


def iter_rows(count: int) -> Iterator[tuple[Row, Row, Row]]:
    """Yield one row each for the tables EVENTS, BODIES and ATTEMPTS, with values in column order."""
    start_time = time.time() - PERIOD_SECONDS
    for number in range(count):
        drain_number, key, type_ = get_drain_number(number), f"id-{number}", get_event_type(number)
        arrival_time, node, uid = (
            start_time + number * PERIOD_SECONDS / count,
            f"node-{drain_number % NODE_COUNT}",
            f"uid-{drain_number}",
        )
        body = (
            f'{{"specversion": "1.0", "id": "{key}", "source": "/x", "type": "{type_}", '
            f'"subject": "drain-{drain_number}", "node": "{node}", "maintenance": "{uid}", '
            f'"partitionkey": "{node}", "datacontenttype": "application/json", '
            f'"data": {{"node": "{node}", "podsVersion": "{number}", "evicted": [{{"namespace": '
            f'"default", "name": "web-{number}", "uid": "{number:036}"}}]}}}}'
        )
        destination = "http://evict/" if number % DEAD_LETTER_INTERVAL == 0 else ""
        event = (number + 1, "/x", key, destination, type_, node, uid, f"drain-{drain_number}", arrival_time, len(body))
        status = 503 if number % FAILED_ATTEMPT_INTERVAL == 0 else 204
        attempt = (key, "/x", "evict", arrival_time, "", 0.02, status, "[]", "", 2)
        yield event, (number + 1, body), attempt


def create_journal(url: str, count: int = EVENT_COUNT) -> None:
    """Create a journal and fill it with `count` events."""
    Journal(url).close()
    (_fill_postgresql if url.startswith("postgresql") else _fill_sqlite)(url, count)


def _fill_sqlite(path: str, count: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:

        def insert(table: Table, values: Iterable[Row]) -> None:
            placeholders = ", ".join("?" * len(table.columns))
            statement = f"INSERT INTO {table.name} VALUES ({placeholders})"  # noqa: S608 - constant table names
            connection.executemany(statement, values)

        def execute(statement: str) -> None:
            connection.execute(statement)

        _insert_rows(insert, execute, sqlite.dialect(), count)


def _fill_postgresql(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:

        def insert(table: Table, values: Iterable[Row]) -> None:
            with connection.cursor().copy(f"COPY {table.name} FROM STDIN".encode()) as copy:
                for value in values:
                    copy.write_row(value)

        def execute(statement: str) -> None:
            connection.execute(statement.encode())

        _insert_rows(insert, execute, postgresql.dialect(), count)  # type: ignore[no-untyped-call]


def _insert_rows(
    insert: Callable[[Table, Iterable[Row]], None], execute: Callable[[str], None], dialect: object, count: int
) -> None:
    """Insert all rows in one transaction; for speed, drop the indexes before and recreate them afterwards."""
    execute("BEGIN")
    indexes = [index for table in METADATA.sorted_tables for index in table.indexes]
    for index in indexes:
        execute(f"DROP INDEX {index.name}")
    rows = iter_rows(count)
    while batch := list(islice(rows, 50_000)):
        for table, values in zip((EVENTS, BODIES, ATTEMPTS), zip(*batch, strict=True), strict=True):
            insert(table, values)
    for index in indexes:
        execute(str(CreateIndex(index).compile(dialect=dialect)))  # type: ignore[arg-type]
    execute("COMMIT")
    execute("ANALYZE")  # PostgreSQL's autovacuum can take a minute until it runs ANALYZE.
