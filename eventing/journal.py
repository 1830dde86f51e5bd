"""The journal: every event once, whole, in the order of arrival, and what each function made of it.

SQLite, one file, or PostgreSQL. Written by the function `record`, one process; read by people, replay and the console.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.formats.json import JSONFormat
from sqlalchemy import Connection, Engine, Table, create_engine, make_url, select
from sqlalchemy import event as hooks
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable

from eventing.entries import Attempt, DeadLetter, Entry, Query, dead_letter_of, maintenance_of, node_of
from eventing.searching import chosen
from eventing.tables import ATTEMPTS, BODIES, EVENTS, METADATA

__all__ = ["Attempt", "DeadLetter", "Entry", "Journal", "JournalError", "Query"]

BUSY_SECONDS = 5
"""How long one SQLite process waits for another, and any process for PostgreSQL to answer; a broker waits for 10."""
AT_ONCE = 500
"""Keys in one statement."""
INSERT: Mapping[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


class JournalError(OSError):
    """The journal cannot be opened, read or written; the message names it."""


class Journal:
    """One journal: a path, `sqlite:///path` or `postgresql://user@host/database`.

    Safe to share between threads. Several processes may read; for numbers in the order of arrival, one writes.
    Every method raises `JournalError` when the database does not do it.
    """

    def __init__(self, url: str | Path) -> None:
        self._url = str(url)
        self._lock = threading.Lock()
        with self._errors():
            self._engine = _engine(self._url)
        insert = INSERT[self._engine.dialect.name]
        self._keep = insert(EVENTS).on_conflict_do_nothing().returning(EVENTS.c.seq)
        self._keep_body = insert(BODIES)
        self._note = insert(ATTEMPTS).on_conflict_do_nothing()
        try:
            with self._writing() as connection:
                _create_tables(connection)
        except JournalError:
            self.close()
            raise

    @classmethod
    def of_environment(cls) -> Journal:
        """The one that `DATABASE_URL`, else `JOURNAL` names, by default the file `journal.db`."""
        return cls(os.environ.get("DATABASE_URL") or os.environ.get("JOURNAL") or "journal.db")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def write(self, event: BaseCloudEvent) -> bool:
        """Keep the event; False when it (source and id) was kept before.

        A dead letter is kept beside the event that it was, for what it says of who could not take it.
        """
        body = JSONFormat().write(event).decode()
        row = _row(event, len(body), time.time())
        with self._writing() as connection:
            seq = connection.execute(self._keep, row).scalar()
            if seq is None:
                return False
            connection.execute(self._keep_body, {"seq": seq, "event": body})
        return True

    def note(self, attempts: Iterable[Attempt]) -> None:
        """Keep attempts, each once; the events may come later."""
        rows = [_attempt_row(attempt) for attempt in attempts]
        if rows:
            with self._writing() as connection:
                connection.execute(self._note, rows)

    def select(self, query: Query | None = None) -> list[Entry]:
        """The entries that the query selects, by default all, in the order of arrival, each with its attempts."""
        with self._errors(), self._engine.connect() as connection:
            rows = connection.execute(chosen(query or Query())).all()
            events = [JSONFormat().read(None, body) for _, _, body in rows]
            made = _attempts(connection, {event.get_id() for event in events})
        return [
            Entry(seq, _moment(arrived), event, tuple(made.get((event.get_source(), event.get_id()), ())))
            for (seq, arrived, _), event in zip(rows, events, strict=True)
        ]

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """One transaction; one at a time, so that a number once seen is never followed by a smaller one."""
        with self._errors(), self._lock, self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, ImportError) as error:
            raise JournalError(f"journal {_without_password(self._url)}: {_reason(error)}") from None


def _engine(url: str) -> Engine:
    """The connections to a database. Raises `SQLAlchemyError` or, without the driver, `ImportError`."""
    if "://" not in url:
        url = f"sqlite:///{url}"
    parsed = make_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"), connect_args={"connect_timeout": BUSY_SECONDS}
        )
    if parsed.drivername != "sqlite":
        raise ArgumentError("take a path, sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE")
    engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
    hooks.listen(engine, "connect", _tune)
    return engine


def _tune(connection: Any, _record: object) -> None:
    """WAL: readers and the writer do not wait for each other; a kill -9 takes nothing, a power cut the last few."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _create_tables(connection: Connection) -> None:
    for table in METADATA.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(CreateIndex(index, if_not_exists=True))


def _row(event: BaseCloudEvent, size: int, arrived: float) -> dict[str, Any]:
    dead = dead_letter_of(event)
    uid, name = maintenance_of(event)
    said = {
        "source": event.get_source(),
        "id": event.get_id(),
        "destination": dead.destination if dead else "",
        "type": event.get_type(),
        "node": node_of(event),
        "maintenance": uid,
        "name": name,
    }
    return {**{column: _plain(text) for column, text in said.items()}, "arrived": arrived, "size": size}


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    said = {name: getattr(attempt, name) for name in ("source", "event", "function", "error", "replay")}
    return {
        **{column: _plain(text) for column, text in said.items()},
        "at": attempt.at.timestamp(),
        "seconds": attempt.seconds,
        "status": attempt.status,
        "replies": json.dumps(attempt.replies),
    }


def _plain(text: str) -> str:
    """PostgreSQL takes no NUL in a text; the event itself, in JSON, has none."""
    return text.replace("\x00", "")


def _attempts(connection: Connection, ids: Iterable[str]) -> Mapping[tuple[str, str], list[Attempt]]:
    """The attempts of these events, by source and id, in the order in which they began."""
    found: dict[tuple[str, str], list[Attempt]] = {}
    keys = iter(ids)
    while some := list(islice(keys, AT_ONCE)):
        query = select(ATTEMPTS).where(ATTEMPTS.c.event.in_(some)).order_by(ATTEMPTS.c.at)
        for row in connection.execute(query).mappings():
            said = {**row, "at": _moment(row["at"]), "replies": tuple(json.loads(row["replies"]))}
            found.setdefault((row["source"], row["event"]), []).append(Attempt(**said))
    return found


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _reason(error: Exception) -> str:
    """What went wrong, in one line and with a remedy where we know one."""
    if isinstance(error, ImportError):
        return "PostgreSQL needs psycopg: pip install 'function[postgresql]'"
    if isinstance(error, NoSuchModuleError):
        return "take a path, sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _without_password(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True) if "://" in url else url
    except ArgumentError:
        return url
