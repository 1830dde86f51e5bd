"""The journal: records every event once, whole, in the order of arrival, with the attempts of each function on it.

In SQLite, one file, or PostgreSQL. Written by the function `record`, to a PostgreSQL by several processes in turn; read
by replay and the console.
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
from eventing.journal.portions import ROOM, portions
from eventing.journal.pruning import ANYBODY, OTHERS, delete_oldest
from eventing.journal.schema import ATTEMPTS, BODIES, EVENTS
from eventing.journal.searching import selected
from eventing.journal.sizes import ATTEMPT_SIZE, EVENT_SIZE

__all__ = ["Attempt", "BadData", "Entry", "Journal", "JournalError", "Query"]

AT_ONCE = 500
"""Keys in one statement."""


class Journal:
    """One journal: a path, `sqlite:///path` or `postgresql://user@host/database`.

    Safe to share between threads. Several processes may read, and of a PostgreSQL write, too: numbers are in the
    order of arrival.
    Every method raises `JournalError` when the database does not do it, and `BadData`, a `BadEvent`, for what it
    could never hold, or be asked for.
    With `create` off, one that is not there is not made, nor is an older one migrated: an error, with `awaited` not at
    once, but of each method until somebody has done so, and until the database's server answers.
    """

    def __init__(self, url: str | Path, *, create: bool = True, awaited: bool = False) -> None:
        self._database = Database(url, create=create, awaited=awaited)
        insert = self._database.insert
        self._insert_event = insert(EVENTS).on_conflict_do_nothing().returning(EVENTS.c.seq, EVENT_SIZE)
        self._insert_body = insert(BODIES)
        self._insert_attempt = insert(ATTEMPTS).on_conflict_do_nothing().returning(ATTEMPT_SIZE)
        self.written = 0
        """Bytes that were written by this process, as `size` counts them."""

    @classmethod
    def of_environment(cls) -> Journal:
        """The one that `DATABASE_URL`, else `JOURNAL` names, by default the file `journal.db`."""
        return cls(os.environ.get("DATABASE_URL") or os.environ.get("JOURNAL") or "journal.db")

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def write(self, event: BaseCloudEvent, arrived: datetime | None = None) -> bool:
        """Record the event, with its arrival or the time of now; False when it (source and id) is recorded already.

        A dead letter is recorded beside the event that it was, once for each subscriber that did not accept it.
        """
        return self.write_all([(event, arrived or datetime.now(timezone.utc))]) == 1

    def write_all(self, events: Iterable[tuple[BaseCloudEvent, datetime]]) -> int:
        """Record events with the times of their arrival, all or none; returns how many were new."""
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
        """Record attempts, each once; their events may come later."""
        rows = [_attempt_row(attempt) for attempt in attempts]
        if rows:
            with self._database.writing() as connection:
                self.written += sum(connection.scalars(self._insert_attempt, rows))

    def select(self, query: Query | None = None) -> list[Entry]:
        """The entries that the query selects, by default all, in the order of arrival, each with its attempts."""
        with self._database.reading() as connection:
            rows = connection.execute(selected(query or Query())).all()
            return _entries(connection, [(seq, at, JSONFormat().read(None, body)) for seq, at, body in rows])

    def each(self, query: Query, room: int = ROOM) -> Iterator[Entry]:
        """The same, one after another: what is in memory at once goes by `room`, and not by what is selected.

        An event comes with all attempts on it, whatever they take. What is pruned meanwhile is left out.
        """
        for numbers in portions(self._sizes(query), room):
            yield from self.select(Query(numbers=numbers))

    def numbers(self, query: Query) -> tuple[int, ...]:
        """The numbers of these entries, in the order of arrival, which theirs is not always."""
        return tuple(number for number, _ in self._sizes(query))

    def _sizes(self, query: Query) -> Sequence[Row[int, int]]:
        with self._database.reading() as connection:
            return connection.execute(listing.sizes(query)).all()

    def listed(self, query: Query, room: int = listing.ROOM) -> list[Entry]:
        """For a list, in bounded memory: of long events the newest have their data, as far as `room` goes.

        Whoever needs one whole selects it by its number.
        """
        with self._database.reading() as connection:
            rows = connection.execute(listing.heads(query)).all()
            long = listing.long_and_whole(reversed(rows), room)
            whole = {seq: JSONFormat().read(None, body) for seq, body in connection.execute(listing.whole(long))}
            return _entries(
                connection, [(row.seq, row.arrived, whole.get(row.seq) or listing.short(row)) for row in rows]
            )

    def size(self) -> int:
        """Bytes of all events and attempts with their rows and indexes; the database takes at most twice that."""
        return pruning.taken(self._database)

    def redriving(self, seq: int) -> AbstractContextManager[bool]:
        """Whether no other process at a PostgreSQL redrives the dead letter of this number, until the block ends."""
        return self._database.alone(REDRIVING + seq)

    def prune(self, age: timedelta | None = None, size: int | None = None) -> int:
        """Delete what is from longer than `age` ago, and the oldest until the rest takes at most `size` bytes.

        What others emit makes room first, down to half of that: a flood of it must not push out what we did, so what
        arrives meanwhile is left for the next time. Returns how many events that were, 0 where another process prunes.
        Goes by small transactions: whoever writes meanwhile does not wait. One thread at a time may call it.
        """
        with self._database.alone(PRUNING) as mine:  # two that measured the same excess would delete it twice
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
    """These events with their attempts, in the order of arrival."""
    attempts = _attempts(connection, {(event.get_source(), event.get_id()) for _, _, event in found})
    entries = [
        Entry(seq, _moment(arrived), event, tuple(attempts.get((event.get_source(), event.get_id()), ())))
        for seq, arrived, event in found
    ]
    return sorted(entries, key=lambda entry: (entry.arrived, entry.seq))  # side by side, a later one is written first


def _rows(event: BaseCloudEvent, arrived: datetime) -> tuple[dict[str, Any], str]:
    """The row of an event in the table that is searched, and its body."""
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
    """PostgreSQL takes no NUL in a text; the event itself, in JSON, has none."""
    return text.replace("\x00", "")


def _attempts(connection: Connection, keys: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], list[Attempt]]:
    """The attempts on the events with these sources and ids, by both, in the order in which they began."""
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
    """A row that was written before times were checked may be beyond all time, and must not hide the others."""
    return datetime.fromtimestamp(min(max(seconds, EARLIEST.timestamp()), LATEST.timestamp()), timezone.utc)
