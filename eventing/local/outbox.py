"""What is owed: events and, for each, the Triggers that have not answered yet. SQLite; used by `delivery`.

An event and its deliveries are written in one transaction before anybody is told that it was accepted, and an answer
is struck off in one transaction with the event it replies: after a crash either both happened or neither.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from eventing.local.envelope import Envelope

SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS delivery (
    event INTEGER NOT NULL REFERENCES event (sequence),
    trigger TEXT NOT NULL,
    failure TEXT,
    PRIMARY KEY (event, trigger)
) WITHOUT ROWID;
"""
BUSY_SECONDS = 5.0
"""Somebody may look into the file with the sqlite3 program meanwhile."""


@dataclass(frozen=True)
class Failure:
    """Why a subscriber did not get an event: what the dead letter will say.

    Attributes:
        destination: the subscriber's URL.
        code: the last HTTP status.
        data: the last answer, base64.
    """

    destination: str
    code: int
    data: str


@dataclass(frozen=True)
class Owed:
    """One delivery: the event's number, its key, the Trigger, and the failure once it is a dead letter."""

    event: int
    key: str
    trigger: str
    failure: Failure | None = None


class Outbox:
    """The open database. Every method is one short transaction (about 0.1 ms: WAL writes without waiting for the disk;
    a power cut can take the last few, a kill -9 none)."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(SCHEMA)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def accept(self, envelope: Envelope, triggers: Sequence[str]) -> list[Owed]:
        """Keep an event for its Triggers; without any there is nothing to keep."""
        with self._transaction():
            return self._insert(envelope, triggers)

    def answer(self, owed: Owed, reply: Envelope | None = None, triggers: Sequence[str] = ()) -> list[Owed]:
        """Strike a delivery off and accept the reply, if any, in one go."""
        with self._transaction():
            self._remove(owed)
            return self._insert(reply, triggers) if reply else []

    def bury(self, owed: Owed, failure: Failure) -> Owed:
        """Remember that a delivery has failed for good, so that from now on the dead letter sink is owed it."""
        self._database.execute(
            "UPDATE delivery SET failure = ? WHERE event = ? AND trigger = ?",
            (json.dumps(asdict(failure)), owed.event, owed.trigger),
        )
        return Owed(owed.event, owed.key, owed.trigger, failure)

    def event(self, sequence: int) -> Envelope:
        """An event that somebody is still owed."""
        row = self._database.execute("SELECT headers, body FROM event WHERE sequence = ?", (sequence,)).fetchone()
        return Envelope(json.loads(row[0]), row[1])

    def pending(self) -> Iterator[Owed]:
        """Everything owed, in order of acceptance."""
        rows = self._database.execute(
            "SELECT sequence, headers, trigger, failure FROM event JOIN delivery ON event = sequence ORDER BY sequence"
        )
        for sequence, headers, trigger, failure in rows:
            why = Failure(**json.loads(failure)) if failure else None
            yield Owed(sequence, Envelope(json.loads(headers), b"").key, trigger, why)

    def drop(self, owed: Sequence[Owed]) -> None:
        """Forget deliveries that nobody wants any more."""
        with self._transaction():
            for one in owed:
                self._remove(one)

    def _insert(self, envelope: Envelope, triggers: Sequence[str]) -> list[Owed]:
        if not triggers:
            return []
        row = (json.dumps(dict(envelope.headers)), envelope.body)
        sequence = self._database.execute("INSERT INTO event (headers, body) VALUES (?, ?)", row).lastrowid
        if sequence is None:
            raise sqlite3.DatabaseError("no row number after an insert")
        self._database.executemany(
            "INSERT INTO delivery (event, trigger) VALUES (?, ?)", [(sequence, trigger) for trigger in triggers]
        )
        return [Owed(sequence, envelope.key, trigger) for trigger in triggers]

    def _remove(self, owed: Owed) -> None:
        self._database.execute("DELETE FROM delivery WHERE event = ? AND trigger = ?", (owed.event, owed.trigger))
        self._database.execute(
            "DELETE FROM event WHERE sequence = ?1 AND NOT EXISTS (SELECT 1 FROM delivery WHERE event = ?1)",
            (owed.event,),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
