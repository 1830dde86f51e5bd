"""Outbox of the local delivery, in SQLite: accepted events, and the Triggers that have not acknowledged each of them.

An event and its pending deliveries are written in one transaction before the sender gets a response. A delivery is
acknowledged in the transaction that accepts its reply. After a crash, either both have happened or neither.

Only one process at a time may use an outbox: two would deliver each event twice, and delete rows that the other still
needs.
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

SCHEMA_VERSION = 1
"""Version of the outbox's schema; an outbox that contains no version has version 1."""
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
PRAGMA user_version = {SCHEMA_VERSION};
"""
BUSY_TIMEOUT_SECONDS = 5.0
"""Seconds to wait for a lock, for example while a user reads the file with the sqlite3 command."""


@dataclass(frozen=True)
class Failure:
    """The reason of a permanently failed delivery, as its dead letter contains it.

    Attributes:
        destination: URL of the subscriber.
        code: HTTP status of the last response.
        data: Body of the last response, in base64.
    """

    destination: str
    code: int
    data: str


@dataclass(frozen=True)
class PendingDelivery:
    """A delivery that is not acknowledged yet; `failure` is set if it is the delivery of a dead letter."""

    sequence: int
    ordering_key: str
    trigger: str
    failure: Failure | None = None


class Outbox:
    """The open outbox; every method is one short transaction.

    A transaction takes about 0.1 ms, because WAL writes do not wait for the disk. A power failure can lose the last few
    transactions; kill -9 loses none. Raises `sqlite3.Error` if the file is unusable, is locked by another process, or
    has a newer version.
    """

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
        self._lock_file = _acquire_lock_file(path)
        _check_version(self._database, path)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(SCHEMA)

    def close(self) -> None:
        """Close the database and release its lock file."""
        self._database.close()
        self._lock_file.close()

    def accept(self, envelope: Envelope, triggers: Sequence[str]) -> list[PendingDelivery]:
        """Store an event with a pending delivery for each Trigger; store nothing if there are no Triggers."""
        with self._transaction():
            return self._insert_deliveries(envelope, triggers)

    def acknowledge(
        self, pending: PendingDelivery, reply: Envelope | None = None, triggers: Sequence[str] = ()
    ) -> list[PendingDelivery]:
        """Remove a completed delivery, and store its reply if there is one, in one transaction."""
        with self._transaction():
            self._remove_delivery(pending)
            return self._insert_deliveries(reply, triggers) if reply else []

    def mark_dead_letter(self, pending: PendingDelivery, failure: Failure) -> PendingDelivery:
        """Record that a delivery failed permanently, so that the event must be delivered to the dead letter sink."""
        self._database.execute(
            "UPDATE delivery SET failure = ? WHERE event = ? AND trigger = ?",
            (json.dumps(asdict(failure)), pending.sequence, pending.trigger),
        )
        return replace(pending, failure=failure)

    def read_event(self, sequence: int) -> Envelope:
        """Return the event of a pending delivery by its sequence number."""
        row = self._database.execute("SELECT headers, body FROM event WHERE sequence = ?", (sequence,)).fetchone()
        return Envelope(json.loads(row[0]), row[1])

    def list_pending(self) -> Iterator[PendingDelivery]:
        """Yield all pending deliveries, in the order in which their events were accepted."""
        rows = self._database.execute(
            "SELECT sequence, headers, trigger, failure FROM event JOIN delivery ON event = sequence ORDER BY sequence"
        )
        for sequence, headers, trigger, failure_json in rows:
            failure = Failure(**json.loads(failure_json)) if failure_json else None
            yield PendingDelivery(sequence, Envelope(json.loads(headers), b"").ordering_key, trigger, failure)

    def drop(self, deliveries: Sequence[PendingDelivery]) -> None:
        """Remove these pending deliveries, because their Trigger no longer exists."""
        with self._transaction():
            for delivery in deliveries:
                self._remove_delivery(delivery)

    def _insert_deliveries(self, envelope: Envelope, triggers: Sequence[str]) -> list[PendingDelivery]:
        if not triggers:
            return []
        row = (json.dumps(dict(envelope.headers)), envelope.body)
        sequence = self._database.execute("INSERT INTO event (headers, body) VALUES (?, ?)", row).lastrowid
        if sequence is None:
            raise sqlite3.DatabaseError("SQLite returned no row id after an insert")
        self._database.executemany(
            "INSERT INTO delivery (event, trigger) VALUES (?, ?)", [(sequence, trigger) for trigger in triggers]
        )
        return [PendingDelivery(sequence, envelope.ordering_key, trigger) for trigger in triggers]

    def _remove_delivery(self, delivery: PendingDelivery) -> None:
        self._database.execute(
            "DELETE FROM delivery WHERE event = ? AND trigger = ?", (delivery.sequence, delivery.trigger)
        )
        self._database.execute(
            "DELETE FROM event WHERE sequence = ?1 AND NOT EXISTS (SELECT 1 FROM delivery WHERE event = ?1)",
            (delivery.sequence,),
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


def _acquire_lock_file(path: Path) -> TextIO:
    """Lock a file next to the outbox and return it; the lock lasts until the file is closed.

    The kernel releases the lock when the process ends for any reason. The file contains the process id of the lock's
    holder. Raises `sqlite3.OperationalError` with that id and the remedy if another process holds the lock.
    """
    try:
        file = Path(f"{path.resolve()}.lock").open("a+")  # noqa: SIM115 - the file stays open
    except OSError as error:
        raise sqlite3.OperationalError(f"{error.filename}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            file.seek(0)
            raise sqlite3.OperationalError(
                f"{path} is in use by another broker, process {file.read().strip()}: stop that broker, or choose "
                "another file with --database"
            ) from None
    file.truncate(0)
    print(os.getpid(), file=file, flush=True)
    return file


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise sqlite3.NotSupportedError(
            f"{path} has version {version}, but this program supports versions up to {SCHEMA_VERSION}: "
            "deliver its events with the release that wrote it, or choose another file with --database"
        )
