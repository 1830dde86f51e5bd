"""The journal: records every event once, complete and in order of arrival, with the attempts on it.

It is stored in SQLite (one file) or PostgreSQL. The function `record` writes it; with PostgreSQL several processes may
write, one at a time. Replay and the console read it.
"""

from __future__ import annotations

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

from eventing.journal import listing, pruning
from eventing.journal.database import PRUNING, REDRIVING, BadData, Database, JournalError
from eventing.journal.entries import EARLIEST, LATEST, Attempt, Entry, Query, maintenance_of, node_of
from eventing.journal.keys import LONGEST_KEY, attempt_keys, event_keys
from eventing.journal.batching import ROOM, portions
from eventing.journal.pruning import ANYBODY, OTHERS, delete_oldest
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS
from eventing.journal.query_builder import selected
from eventing.journal.sizes import ATTEMPT_SIZE, EVENT_SIZE

__all__ = ["Attempt", "BadData", "Entry", "Journal", "JournalError", "Query"]

AT_ONCE = 500
"""Maximum number of keys in one SQL statement."""


class Journal:
    """One journal: a path, `sqlite:///path` or `postgresql://user@host/database`.

    Instances are thread-safe. Several processes may read a journal, and with PostgreSQL several may write it. Events
    are numbered in order of arrival. Every method raises `JournalError` if the database fails, and `BadData`, a
    `BadEvent`, for a value that the database cannot store or compare.

    With `create=False`, a missing journal is not created and an older one is not migrated; the constructor raises
    `JournalError` instead. With `awaited=True` as well, each method raises it instead, until another process has
    created or migrated the journal and the database server responds.
    """

    def __init__(self, url: str | Path, *, create: bool = True, awaited: bool = False) -> None:
        self._database = Database(url, create=create, awaited=awaited)
        insert = self._database.insert
        self._insert_event = insert(EVENTS).on_conflict_do_nothing().returning(EVENTS.c.seq, EVENT_SIZE)
        self._insert_body = insert(BODIES)
        self._insert_attempt = insert(ATTEMPTS).on_conflict_do_nothing().returning(ATTEMPT_SIZE)
        self.written = 0
        """Bytes written by this process, as `size` counts them."""

    @classmethod
    def of_environment(cls) -> Journal:
        """Open the journal that `DATABASE_URL`, or else `JOURNAL`, names; by default the file `journal.db`."""
        return cls(os.environ.get("DATABASE_URL") or os.environ.get("JOURNAL") or "journal.db")

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def write(self, event: BaseCloudEvent, arrived: datetime | None = None) -> bool:
        """Record an event, and return False if an event with its source and id is already recorded.

        `arrived` defaults to the current time. A dead letter is recorded in addition to the event that it was, once for
        each subscriber that did not accept it.
        """
        return self.write_all([(event, arrived or datetime.now(timezone.utc))]) == 1

    def write_all(self, events: Iterable[tuple[BaseCloudEvent, datetime]]) -> int:
        """Record events with their arrival times, all or none; return the number of new events."""
        rows = [_rows(event, arrived) for event, arrived in events]
        new = 0
        with self._database.writing() as connection:
            for row, body in rows:
                for seq, size in connection.execute(self._insert_event, row).all():
                    connection.execute(self._insert_body, {"seq": seq, "event": body})
                    new += 1
                    self.written += size
        return new

    def write_attempts(self, attempts: Iterable[Attempt]) -> None:
        """Record attempts, each once; their events may be recorded later."""
        rows = [_attempt_row(attempt) for attempt in attempts]
        if rows:
            with self._database.writing() as connection:
                self.written += sum(connection.scalars(self._insert_attempt, rows))

    def select(self, query: Query | None = None) -> list[Entry]:
        """Return the selected entries with their attempts, in order of arrival; by default all entries."""
        with self._database.reading() as connection:
            rows = connection.execute(selected(query or Query())).all()
            return _entries(connection, [(seq, at, JSONFormat().read(None, body)) for seq, at, body in rows])

    def each(self, query: Query, room: int = ROOM) -> Iterator[Entry]:
        """Yield the selected entries one by one, in memory bounded by `room` instead of by the number of entries.

        An entry always has all its attempts, whatever their size. Entries that are pruned meanwhile are left out.
        """
        for numbers in portions(self._sizes(query), room):
            yield from self.select(Query(numbers=numbers))

    def numbers(self, query: Query) -> tuple[int, ...]:
        """Return the numbers of the selected entries in order of arrival, which may not be ascending."""
        return tuple(number for number, _ in self._sizes(query))

    def _sizes(self, query: Query) -> Sequence[Row[int, int]]:
        with self._database.reading() as connection:
            return connection.execute(listing.sizes(query)).all()

    def listed(self, query: Query, room: int = listing.ROOM) -> list[Entry]:
        """Return entries for a list in bounded memory; only the newest long events have data, limited by `room`.

        To read a long event completely, select it by its number.
        """
        with self._database.reading() as connection:
            rows = connection.execute(listing.heads(query)).all()
            long = listing.long_and_whole(reversed(rows), room)
            whole = {seq: JSONFormat().read(None, body) for seq, body in connection.execute(listing.whole(long))}
            return _entries(
                connection, [(row.seq, row.arrived, whole.get(row.seq) or listing.short(row)) for row in rows]
            )

    def size(self) -> int:
        """Return the bytes of all events and attempts with rows and indexes; the database takes up to twice that."""
        return pruning.taken(self._database)

    def redriving(self, seq: int) -> AbstractContextManager[bool]:
        """Acquire the lock for redriving the dead letter `seq` during the block; yield whether that succeeded.

        Always succeeds for SQLite.
        """
        return self._database.alone(REDRIVING + seq)

    def prune(self, age: timedelta | None = None, size: int | None = None) -> int:
        """Delete everything older than `age`, then the oldest until the rest takes at most `size` bytes.

        Events of other emitters are deleted first, until they take half of `size`: a flood of them must not displace
        this project's own events. What arrives meanwhile is left for the next pruning. Returns the number of deleted
        events, 0 if another process is pruning. The transactions are small, so that writers wait only briefly. Only one
        thread at a time may call this method.
        """
        with self._database.alone(PRUNING) as mine:  # two processes that measure the same excess would delete it twice
            return self._prune(age, size) if mine else 0

    def _prune(self, age: timedelta | None, size: int | None) -> int:
        count = 0
        if age is not None:
            count, _ = delete_oldest(self._database, ANYBODY, before=time.time() - age.total_seconds())
        if size is not None:
            excess = self.size() - size
            first = min(excess, pruning.taken(self._database, OTHERS) - size // 2)
            others, freed = delete_oldest(self._database, OTHERS, enough=first)
            rest, _ = delete_oldest(self._database, ANYBODY, enough=excess - freed)
            count += others + rest
        return count


def _entries(connection: Connection, found: Sequence[tuple[int, float, BaseCloudEvent]]) -> list[Entry]:
    """Build the entries of these events with their attempts, in order of arrival."""
    attempts = _attempts(connection, {(event.get_source(), event.get_id()) for _, _, event in found})
    entries = [
        Entry(seq, _moment(arrived), event, tuple(attempts.get((event.get_source(), event.get_id()), ())))
        for seq, arrived, event in found
    ]
    return sorted(entries, key=lambda entry: (entry.arrived, entry.seq))  # concurrent writes may swap numbers


def _rows(event: BaseCloudEvent, arrived: datetime) -> tuple[dict[str, Any], str]:
    """Return an event's row in the searchable table, and its body."""
    body = JSONFormat().write(event).decode()
    uid, name = maintenance_of(event)
    about = {"type": event.get_type(), "node": node_of(event), "maintenance": uid, "name": name}
    columns = {**event_keys(event), **about}
    texts = {column: _plain(text)[:LONGEST_KEY] for column, text in columns.items()}
    return {**texts, "arrived": arrived.timestamp(), "size": len(body)}, body


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    columns = {**attempt_keys(attempt), "error": attempt.error}
    replies = json.dumps(attempt.replies)
    return {
        **{column: _plain(text) for column, text in columns.items()},
        "at": attempt.at.timestamp(),
        "seconds": attempt.seconds,
        "status": attempt.status,
        "replies": replies,
        "size": len(replies) + len(attempt.error),
    }


def _plain(text: str) -> str:
    """Remove NUL characters, which PostgreSQL rejects in a text; in the event itself JSON escapes them."""
    return text.replace("\x00", "")


def _attempts(connection: Connection, keys: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], list[Attempt]]:
    """Return the attempts on the events with these sources and ids, grouped by event, ordered by start time."""
    found: dict[tuple[str, str], list[Attempt]] = {}
    left = iter(keys)
    while some := set(islice(left, AT_ONCE)):
        sources, ids = map(set, zip(*some, strict=True))
        query = select(ATTEMPTS).where(ATTEMPTS.c.event.in_(ids), ATTEMPTS.c.source.in_(sources))
        for row in connection.execute(query.order_by(ATTEMPTS.c.at)):
            if (row.source, row.event) in some:
                found.setdefault((row.source, row.event), []).append(_attempt(row))
    return found


def _attempt(row: Any) -> Attempt:
    replies = tuple(json.loads(row.replies))
    at = _moment(row.at)
    return Attempt(row.source, row.event, row.function, at, row.seconds, row.status, replies, row.error, row.replay)


def _moment(seconds: float) -> datetime:
    """Convert a stored time, limited to the valid range.

    Old releases stored times unchecked. An invalid one must not make the other rows unreadable.
    """
    return datetime.fromtimestamp(min(max(seconds, EARLIEST.timestamp()), LATEST.timestamp()), timezone.utc)
