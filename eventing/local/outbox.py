"""Outbox of the local delivery, in SQLite: accepted events and, for each, the Triggers that have not acknowledged it.

An event and its pending deliveries are written in one transaction before its sender gets a response, and a delivery is
acknowledged in one transaction with accepting the reply: after a crash either both happened or neither. One process at
a time has an outbox: two would deliver each event twice, and take its row away beneath each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from eventing.local.envelope import Envelope

VERSION = 1
"""Of the schema. An outbox without one has the schema of version 1."""
SCHEMA = f"""
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
PRAGMA user_version = {VERSION};
"""
BUSY_SECONDS = 5.0
"""Somebody may look into the file with the sqlite3 program meanwhile."""


@dataclass(frozen=True)
class Failure:
    """Why a delivery failed for good, as the dead letter will carry it.

    Attributes:
        destination: the subscriber's URL.
        code: the last HTTP status.
        data: the body of the last response, in base64.
    """

    destination: str
    code: int
    data: str


@dataclass(frozen=True)
class PendingDelivery:
    """A delivery not acknowledged yet: event number and key, its Trigger, the failure once it is a dead letter."""

    event: int
    key: str
    trigger: str
    failure: Failure | None = None


class Outbox:
    """The open database. Every method is one short transaction (about 0.1 ms: WAL writes without waiting for the disk;
    a power cut can take the last few, a kill -9 none).

    Raises `sqlite3.Error` when the file cannot be used, is another process's, or is one of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        self._lock = _locked(path)
        _check_version(self._database, path)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(SCHEMA)

    def close(self) -> None:
        """Close the database; from now on it is anybody's."""
        self._database.close()
        self._lock.close()

    def accept(self, envelope: Envelope, triggers: Sequence[str]) -> list[PendingDelivery]:
        """Store an event with a pending delivery for each Trigger; without Triggers nothing is stored."""
        with self._transaction():
            return self._insert(envelope, triggers)

    def acknowledge(
        self, pending: PendingDelivery, reply: Envelope | None = None, triggers: Sequence[str] = ()
    ) -> list[PendingDelivery]:
        """Remove a delivery that is done and accept the reply, if any, in one transaction."""
        with self._transaction():
            self._remove(pending)
            return self._insert(reply, triggers) if reply else []

    def dead_letter(self, pending: PendingDelivery, failure: Failure) -> PendingDelivery:
        """Store that a delivery has failed for good: from now on it is pending for the dead letter sink."""
        self._database.execute(
            "UPDATE delivery SET failure = ? WHERE event = ? AND trigger = ?",
            (json.dumps(asdict(failure)), pending.event, pending.trigger),
        )
        return replace(pending, failure=failure)

    def event(self, sequence: int) -> Envelope:
        """The event of a pending delivery."""
        row = self._database.execute("SELECT headers, body FROM event WHERE sequence = ?", (sequence,)).fetchone()
        return Envelope(json.loads(row[0]), row[1])

    def pending(self) -> Iterator[PendingDelivery]:
        """All pending deliveries, in order of acceptance."""
        rows = self._database.execute(
            "SELECT sequence, headers, trigger, failure FROM event JOIN delivery ON event = sequence ORDER BY sequence"
        )
        for sequence, headers, trigger, failure in rows:
            cause = Failure(**json.loads(failure)) if failure else None
            yield PendingDelivery(sequence, Envelope(json.loads(headers), b"").key, trigger, cause)

    def drop(self, deliveries: Sequence[PendingDelivery]) -> None:
        """Remove deliveries that have no Trigger any more."""
        with self._transaction():
            for delivery in deliveries:
                self._remove(delivery)

    def _insert(self, envelope: Envelope, triggers: Sequence[str]) -> list[PendingDelivery]:
        if not triggers:
            return []
        row = (json.dumps(dict(envelope.headers)), envelope.body)
        sequence = self._database.execute("INSERT INTO event (headers, body) VALUES (?, ?)", row).lastrowid
        if sequence is None:
            raise sqlite3.DatabaseError("no row number after an insert")
        self._database.executemany(
            "INSERT INTO delivery (event, trigger) VALUES (?, ?)", [(sequence, trigger) for trigger in triggers]
        )
        return [PendingDelivery(sequence, envelope.key, trigger) for trigger in triggers]

    def _remove(self, delivery: PendingDelivery) -> None:
        self._database.execute(
            "DELETE FROM delivery WHERE event = ? AND trigger = ?", (delivery.event, delivery.trigger)
        )
        self._database.execute(
            "DELETE FROM event WHERE sequence = ?1 AND NOT EXISTS (SELECT 1 FROM delivery WHERE event = ?1)",
            (delivery.event,),
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


def _locked(path: Path) -> TextIO:
    """The file beside the outbox, locked while it is open: the kernel ends that with the process, however it dies.

    It holds the number of the process that has it. Raises `sqlite3.OperationalError` with that, and the remedy.
    """
    try:
        file = Path(f"{path.resolve()}.lock").open("a+")  # noqa: SIM115 - it stays open
    except OSError as error:
        raise sqlite3.OperationalError(f"{error.filename}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            file.seek(0)
            raise sqlite3.OperationalError(
                f"{path} is being delivered by another broker, process {file.read().strip()}: stop that one, or name "
                "another file by --database"
            ) from None
    file.truncate(0)
    print(os.getpid(), file=file, flush=True)
    return file


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise sqlite3.NotSupportedError(
            f"{path} is an outbox of version {version}, this program knows none after {VERSION}: deliver what is in it "
            "with the release that wrote it, or name another file by --database"
        )
