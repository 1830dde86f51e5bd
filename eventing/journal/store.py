"""The journal: records every event once, completely and in order of arrival, with its attempts.

The journal is stored in SQLite (one file) or PostgreSQL. The function `record` writes it; with PostgreSQL, several
processes may write, one at a time. Replay and the console read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.formats.json import JSONFormat
from sqlalchemy import Connection, Row, select

from eventing.journal import pruning, queries
from eventing.journal.database import PRUNE_LOCK, REDRIVE_LOCK, Database, JournalError, UnstorableData
from eventing.journal.entries import (
    BATCH_CAPACITY_CHARACTERS,
    MAX_KEY_BYTES,
    MAX_TIME,
    MIN_TIME,
    Attempt,
    Entry,
    Query,
    get_attempt_keys,
    get_event_keys,
    get_node_name,
    get_object_identity,
    split_into_batches,
)
from eventing.journal.pruning import ALL_EMITTERS, FOREIGN_EMITTERS, delete_oldest
from eventing.journal.schema import ATTEMPT_SIZE, ATTEMPTS, BODIES, EVENT_SIZE, EVENTS

__all__ = ["Attempt", "Entry", "Journal", "JournalError", "Query", "UnstorableData"]

MAX_KEYS_PER_QUERY = 500
"""Maximum number of keys in one SQL statement."""


class Journal:
    """A journal, opened with its path, `sqlite:///path` or `postgresql://user@host/database`.

    Instances are thread-safe. Several processes may read a journal, and with PostgreSQL several may write it. Events
    are numbered in order of arrival. Every method raises `JournalError` if the database fails, and `UnstorableData`, a
    `BadEvent`, for a value that the database cannot store or compare.

    With `create=False`, the constructor neither creates nor migrates a journal, and raises `JournalError` instead. With
    `defer_not_ready=True`, too, every method raises that error instead of the constructor. This lasts until another
    process has created or migrated the journal and the database server responds.
    """

    def __init__(self, url: str | Path, *, create: bool = True, defer_not_ready: bool = False) -> None:
        self._database = Database(url, create=create, defer_not_ready=defer_not_ready)
        insert = self._database.insert
        self._insert_event = insert(EVENTS).on_conflict_do_nothing().returning(EVENTS.c.seq, EVENT_SIZE)
        self._insert_body = insert(BODIES)
        self._insert_attempt = insert(ATTEMPTS).on_conflict_do_nothing().returning(ATTEMPT_SIZE)
        self.written_bytes = 0
        """Number of bytes that this process has written, as `schema` computes them."""

    @classmethod
    def from_environment(cls) -> Journal:
        """Open the journal at `$DATABASE_URL`, else at `$JOURNAL`, else the file `journal.db`."""
        return cls(os.environ.get("DATABASE_URL") or os.environ.get("JOURNAL") or "journal.db")

    def close(self) -> None:
        """Close all connections to the database."""
        self._database.close()

    def write_event(self, event: BaseCloudEvent, arrived: datetime | None = None) -> bool:
        """Record an event; return False if an event with the same source and id is already recorded.

        `arrived` defaults to the current time. A dead letter is recorded in addition to its original event, once for
        each subscriber that did not accept it.
        """
        return self.write_events([(event, arrived or datetime.now(timezone.utc))]) == 1

    def write_events(self, events: Iterable[tuple[BaseCloudEvent, datetime]]) -> int:
        """Record events with their arrival times in one transaction; return the number of new events."""
        rows = [_build_event_row(event, arrived) for event, arrived in events]
        new_count = 0
        with self._database.begin() as connection:
            for row, body in rows:
                for seq, size in connection.execute(self._insert_event, row).all():
                    connection.execute(self._insert_body, {"seq": seq, "event": body})
                    new_count += 1
                    self.written_bytes += size
        return new_count

    def write_attempts(self, attempts: Iterable[Attempt]) -> None:
        """Record each attempt once; an attempt may be recorded before its event."""
        rows = [_build_attempt_row(attempt) for attempt in attempts]
        if rows:
            with self._database.begin() as connection:
                self.written_bytes += sum(connection.scalars(self._insert_attempt, rows))

    def select(self, query: Query | None = None) -> list[Entry]:
        """Return the selected entries with their attempts, in order of arrival; by default, all entries."""
        with self._database.connect() as connection:
            rows = connection.execute(queries.select_events(query or Query())).all()
            return _build_entries(connection, [(seq, at, JSONFormat().read(None, body)) for seq, at, body in rows])

    def iter_entries(self, query: Query, capacity: int = BATCH_CAPACITY_CHARACTERS) -> Iterator[Entry]:
        """Yield the selected entries one by one; `capacity` limits the memory use, however many entries there are.

        An entry always has all its attempts, regardless of their size. Entries that are pruned during the iteration are
        omitted.
        """
        for numbers in split_into_batches(self.list_sizes(query), capacity):
            yield from self.select(Query(seqs=numbers))

    def list_event_numbers(self, query: Query) -> tuple[int, ...]:
        """Return the numbers of the selected entries in order of arrival; they may not be ascending."""
        return tuple(number for number, _ in self.list_sizes(query))

    def compute_version(self, query: Query) -> str:
        """Return a hash of the selected entries' numbers, sizes and arrival times, without reading the events.

        The hash changes whenever the entries or their attempts change. The arrival times change it if the file is
        replaced.
        """
        with self._database.connect() as connection:
            rows = connection.execute(queries.select_sizes(query).add_columns(EVENTS.c.arrived)).all()
        return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]

    def list_sizes(self, query: Query) -> Sequence[Row[int, int]]:
        """Return each selected entry's number, and its size including its attempts, in order of arrival."""
        with self._database.connect() as connection:
            return connection.execute(queries.select_sizes(query)).all()

    def list_entries(self, query: Query, capacity: int = queries.BODY_CAPACITY_CHARACTERS) -> list[Entry]:
        """Return entries for a list, in limited memory; only the newest long events have data, up to `capacity`.

        To read a long event completely, select it by its number.
        """
        with self._database.connect() as connection:
            rows = connection.execute(queries.select_event_heads(query)).all()
            long_seqs = queries.select_long_event_numbers(reversed(rows), capacity)
            whole_events = {
                seq: JSONFormat().read(None, body) for seq, body in connection.execute(queries.select_bodies(long_seqs))
            }
            return _build_entries(
                connection,
                [(row.seq, row.arrived, whole_events.get(row.seq) or queries.parse_event_head(row)) for row in rows],
            )

    def measure_bytes(self) -> int:
        """Return the size of all events, attempts and index entries in bytes; a database takes up to twice that."""
        return pruning.measure_bytes(self._database)

    def try_lock_redrive(self, seq: int) -> AbstractContextManager[bool]:
        """Try to hold the lock for redriving the dead letter `seq` during the block; yield whether this succeeded.

        For SQLite, it always succeeds.
        """
        return self._database.try_lock(REDRIVE_LOCK + seq)

    def prune(self, max_age: timedelta | None = None, max_bytes: int | None = None) -> int:
        """Delete events and attempts older than `max_age`, then the oldest ones beyond a total of `max_bytes` bytes.

        Events from sources outside this project are deleted first, until they take half of `max_bytes`. A flood of such
        events thus does not displace this project's own events. Events that arrive during the call are left for the
        next pruning.

        Returns the number of deleted events, 0 if another process is pruning. The transactions are small, so that
        writers wait only briefly. Only one thread at a time may call this method.
        """
        # Without the lock, two processes that measure the same excess would delete it twice.
        with self._database.try_lock(PRUNE_LOCK) as is_locked:
            return self._prune(max_age, max_bytes) if is_locked else 0

    def _prune(self, max_age: timedelta | None, max_bytes: int | None) -> int:
        count = 0
        if max_age is not None:
            count, _ = delete_oldest(self._database, ALL_EMITTERS, end=time.time() - max_age.total_seconds())
        if max_bytes is not None:
            excess = self.measure_bytes() - max_bytes
            first = min(excess, pruning.measure_bytes(self._database, FOREIGN_EMITTERS) - max_bytes // 2)
            foreign_count, freed = delete_oldest(self._database, FOREIGN_EMITTERS, min_freed_bytes=first)
            remaining_count, _ = delete_oldest(self._database, ALL_EMITTERS, min_freed_bytes=excess - freed)
            count += foreign_count + remaining_count
        return count


def _build_entries(connection: Connection, rows: Sequence[tuple[int, float, BaseCloudEvent]]) -> list[Entry]:
    """Build the entries of these events with their attempts, in order of arrival."""
    attempts = _read_attempts(connection, {(event.get_source(), event.get_id()) for _, _, event in rows})
    entries = [
        Entry(seq, _convert_stored_time(arrived), event, tuple(attempts.get((event.get_source(), event.get_id()), ())))
        for seq, arrived, event in rows
    ]
    # Concurrent writes may be numbered out of order.
    return sorted(entries, key=lambda entry: (entry.arrived, entry.seq))


def _build_event_row(event: BaseCloudEvent, arrived: datetime) -> tuple[dict[str, Any], str]:
    """Build an event's row with the searchable columns, and its body."""
    body = JSONFormat().write(event).decode()
    uid, name = get_object_identity(event)
    description = {"type": event.get_type(), "node": get_node_name(event), "maintenance": uid, "name": name}
    columns = {**get_event_keys(event), **description}
    texts = {column: _remove_nul(text)[:MAX_KEY_BYTES] for column, text in columns.items()}
    return {**texts, "arrived": arrived.timestamp(), "size": len(body)}, body


def _build_attempt_row(attempt: Attempt) -> dict[str, Any]:
    columns = {**get_attempt_keys(attempt), "error": attempt.error}
    replies = json.dumps(attempt.replies)
    return {
        **{column: _remove_nul(text) for column, text in columns.items()},
        "at": attempt.at.timestamp(),
        "seconds": attempt.seconds,
        "status": attempt.status,
        "replies": replies,
        "size": len(replies) + len(attempt.error),
    }


def _remove_nul(text: str) -> str:
    """Remove NUL characters, which PostgreSQL rejects in a text; in the event's body, JSON escapes them."""
    return text.replace("\x00", "")


def _read_attempts(connection: Connection, keys: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], list[Attempt]]:
    """Return the attempts for the events with these sources and ids, grouped by event and ordered by start time."""
    attempts: dict[tuple[str, str], list[Attempt]] = {}
    remaining = iter(keys)
    while chunk := set(islice(remaining, MAX_KEYS_PER_QUERY)):
        sources, ids = map(set, zip(*chunk, strict=True))
        query = select(ATTEMPTS).where(ATTEMPTS.c.event.in_(ids), ATTEMPTS.c.source.in_(sources))
        for row in connection.execute(query.order_by(ATTEMPTS.c.at)):
            if (row.source, row.event) in chunk:
                attempts.setdefault((row.source, row.event), []).append(_parse_attempt_row(row))
    return attempts


def _parse_attempt_row(row: Any) -> Attempt:
    replies = tuple(json.loads(row.replies))
    at = _convert_stored_time(row.at)
    return Attempt(row.source, row.event, row.function, at, row.seconds, row.status, replies, row.error, row.replay)


def _convert_stored_time(seconds: float) -> datetime:
    """Convert a stored time, limited to the range of valid times.

    Old releases stored unchecked times. One invalid time must not make the other rows unreadable.
    """
    return datetime.fromtimestamp(min(max(seconds, MIN_TIME.timestamp()), MAX_TIME.timestamp()), timezone.utc)
