"""The journal: every event once, whole, in the order of arrival. SQLite, one file.

Written by the function `record`; read by people and by replay.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from cloudevents.core.base import BaseCloudEvent

from eventing.wire import STRUCTURED, received, structured

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY,
    source TEXT NOT NULL, id TEXT NOT NULL,
    type TEXT NOT NULL, node TEXT, maintenance TEXT, cause TEXT,
    arrived TEXT NOT NULL,
    event TEXT NOT NULL,
    failed TEXT NOT NULL,
    UNIQUE (source, id, failed)
);
CREATE INDEX IF NOT EXISTS by_maintenance ON events (maintenance, seq);
"""


class JournalError(OSError):
    """The journal's file cannot be opened or written."""


class Journal:
    """One journal file; safe to share between threads and processes (SQLite's own lock orders the writers)."""

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise JournalError(f"journal {path}: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def write(self, event: BaseCloudEvent) -> bool:
        """Keep the event; False when it (source and id) was kept before. Raises `JournalError`.

        A dead letter is kept beside the event that it was, for what it says of who could not take it.
        """
        row = (
            event.get_source(),
            event.get_id(),
            event.get_type(),
            event.get_extension("node"),
            event.get_extension("maintenance"),
            event.get_extension("cause"),
            datetime.now(timezone.utc).isoformat(),
            structured(event).body.decode(),
            event.get_extension("knativeerrordest") or "",
        )
        statement = (
            "INSERT OR IGNORE INTO events (source, id, type, node, maintenance, cause, arrived, event, failed) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        try:
            with self._lock:
                return self._db.execute(statement, row).rowcount == 1
        except sqlite3.Error as error:
            raise JournalError(str(error)) from None

    def events(self) -> Iterator[BaseCloudEvent]:
        """All events in the order of arrival."""
        with self._lock:
            rows = self._db.execute("SELECT event FROM events ORDER BY seq").fetchall()
        for (body,) in rows:
            yield received({"content-type": STRUCTURED}, body.encode(), any_data=True)
