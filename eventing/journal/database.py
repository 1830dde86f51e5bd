"""Connections to the journal's database, SQLite or PostgreSQL, with the same errors for both. Used by `store`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Table, create_engine, make_url
from sqlalchemy import event as hooks
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, NoSuchModuleError, OperationalError, SQLAlchemyError

from eventing.journal import migrations
from eventing.journal.migrations import OlderVersion, WrongVersion
from eventing.journal.fail_fast_lock import CROWDED_SECONDS, OneTries
from eventing.http_binding import BadEvent

CHECK_SECONDS = 1.0
"""Seconds between a writer's checks for a migration by a newer release.

Each check costs a round trip to the database.
"""
BUSY_SECONDS = 5
"""Seconds to wait for another process's lock on the SQLite file, or for a response from PostgreSQL.

A broker waits 10 seconds for the response of `record`.
"""
POSTGRESQL = {
    "connect_timeout": BUSY_SECONDS,
    "tcp_user_timeout": 1000 * BUSY_SECONDS,  # otherwise a request to a vanished host is retried for minutes
    "keepalives_idle": BUSY_SECONDS,  # otherwise a response from a vanished host is awaited for two hours
    "keepalives_interval": 1,
    "keepalives_count": 5,
    "options": "-c jit=off",  # JIT compilation would take longer than the journal's queries
}
TURNS = {"postgresql": migrations.turn(7305804385369681514)}
"""Statements that let one process at a time write, until its transaction ends; SQLite locks its file without them."""
PRUNING, REDRIVING = 7305804385369681515, 7305804385369681516
"""PostgreSQL advisory locks for pruning and redriving; a dead letter's number is added to the latter."""
TAKEN = "take a path, sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
Insert = Callable[[Table], sqlite.Insert | postgresql.Insert]
INSERTS: Mapping[str, Insert] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""Dialect → its `insert` function; each dialect has its own class with `ON CONFLICT DO NOTHING`."""


class JournalError(OSError):
    """The journal cannot be opened, read or written; the message names the journal."""


class NotYet(JournalError):
    """The journal does not exist yet, its tables are from an older release, or its server is unreachable.

    The function `record` creates or migrates the journal.
    """


class BadData(BadEvent):
    """The database cannot store this value, so a retry cannot succeed; the message gives the reason."""


class Database:
    """Thread-safe connections to one database.

    Missing tables are created, and tables of an older version are migrated. With `create=False`, which needs no write
    permission, the constructor raises `NotYet` instead. It also raises `NotYet` if the server is unreachable. With
    `awaited=True` the constructor accepts these states, and `reading` and `writing` raise `NotYet` while they last.
    Tables of a newer version always raise `JournalError`. A SQLite file that was replaced is reopened.
    """

    def __init__(self, url: str | Path, *, create: bool, awaited: bool = False) -> None:
        self.url = str(url)
        self._writer, self._create = OneTries(OperationalError), create
        self._versioned, self._check_due = False, 0.0
        self._is_open = False
        self._opened: tuple[int, int] | None = None
        with self._errors():
            self._path, self._engine = file_of(self.url), engine_of(self.url, create=create)
        self.insert: Insert = INSERTS[self._engine.dialect.name]
        try:
            self._prepare()
        except JournalError as error:
            if not (awaited and isinstance(error, NotYet)):
                self.close()
                raise

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _prepare(self) -> None:
        found = self._file()
        if self._create:
            self._make_tables()
        elif reason := self._missing():
            raise NotYet(f"journal {_without_password(self.url)}: {reason}")
        with self._connected() as connection:
            self._versioned = migrations.is_versioned(connection)
        self._is_open, self._opened = True, found or self._file()

    def _make_tables(self) -> None:
        with self._connected() as connection:
            is_current = migrations.is_current(connection)
        if not is_current:
            with self._errors(), self._begun() as connection:
                migrations.upgrade(connection)

    def _missing(self) -> str:
        """Return why the journal cannot be read yet, "" if it can."""
        if self._path is not None and not self._file():
            return "there is no such file yet: the function record makes it"
        with self._connected() as connection:
            try:
                return "" if migrations.check(connection) else "there are no tables of a journal in it"
            except OlderVersion as error:
                return str(error)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection for reading; a replaced SQLite file is reopened first.

        Raises `JournalError` for database errors inside the block.
        """
        self._follow_file()
        with self._connected() as connection:
            yield connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._errors(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, crowded: float = CROWDED_SECONDS) -> Iterator[Connection]:
        """Yield a connection with a transaction; one process writes at a time.

        Writers are serialized so that a reader that has seen a number never sees a smaller number appear later.

        Raises `JournalError` for database errors inside the block, and rolls the transaction back. It also raises
        `JournalError` in these cases:

        * The database is unreachable and another thread is already trying it: at once.
        * The database is slow and several threads are waiting: after `crowded` seconds.
        * The SQLite file was replaced: once, after reopening it.
        """
        with self._errors(), self._writer.turn(BUSY_SECONDS, crowded):
            if self._follow_file():
                raise JournalError(f"journal {self.url}: its file was removed or replaced, and is opened anew")
            with self._begun() as connection:
                yield connection
                if self._versioned and time.monotonic() >= self._check_due:
                    self._check_due = time.monotonic() + CHECK_SECONDS
                    migrations.require_current(connection)  # rolls back if a newer release has migrated the tables

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            for statement in TURNS.get(self._engine.dialect.name, ()):
                connection.exec_driver_sql(statement)
            yield connection

    def _follow_file(self) -> bool:
        """Open the database if it is not open, or reopen it if its SQLite file was replaced.

        SQLite would otherwise keep using the deleted file. Returns whether the file was replaced. Raises `JournalError`
        if the database cannot be opened.
        """
        is_same = self._file() == self._opened
        if self._is_open and is_same:
            return False
        was_opened, self._is_open = self._opened is not None, False
        self._engine.dispose()
        self._prepare()
        return was_opened and not is_same

    def _file(self) -> tuple[int, int] | None:
        """Return device and inode of the SQLite file, or None if the file does not exist."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def alone(self, lock: int) -> Iterator[bool]:
        """Yield whether this process holds a PostgreSQL advisory lock during the block.

        Always yields True for SQLite, as only one process writes such a journal.
        """
        if self._engine.dialect.name != "postgresql":
            yield True
            return
        with self.reading() as connection:
            mine = bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock})").scalar())
            connection.commit()  # the session holds the lock, so the transaction can end here
            try:
                yield mine
            finally:
                if mine:
                    connection.exec_driver_sql(f"SELECT pg_advisory_unlock({lock})")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DataError, OverflowError, UnicodeError) as error:
            raise BadData(f"the journal cannot hold it: {_reason(error)}") from None
        except (SQLAlchemyError, ImportError, WrongVersion, BlockingIOError) as error:
            kind = NotYet if isinstance(error, OperationalError) and self._path is None else JournalError
            raise kind(f"journal {_without_password(self.url)}: {_reason(error)}") from None


def file_of(url: str) -> str | None:
    """Return the path of the SQLite file, or None for another database. Raises `SQLAlchemyError` for an invalid URL."""
    parsed = _parsed(url)
    return parsed.database or "" if parsed.drivername == "sqlite" else None


def engine_of(url: str, *, create: bool = True) -> Engine:
    """Create the engine of a database; with `create=False` SQLite does not create the file.

    Raises `SQLAlchemyError` for an unsupported URL, and `ImportError` if the database driver is not installed.
    """
    parsed = _parsed(url)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
        return create_engine(parsed, connect_args=POSTGRESQL)
    if parsed.drivername != "sqlite":
        raise ArgumentError(TAKEN)
    if not create:
        name = f"file:{quote(os.path.abspath(parsed.database or ''))}"
        parsed = parsed.set(database=name).update_query_dict({"mode": "rw", "uri": "true"})
    engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
    hooks.listen(engine, "connect", _tune)
    return engine


def _parsed(url: str) -> URL:
    try:
        return make_url(url if "://" in url else f"sqlite:///{url}")
    except ValueError:  # the port is not a number
        raise ArgumentError(TAKEN) from None


def _tune(connection: Any, _record: object) -> None:
    """Enable WAL, so that readers and the writer do not block each other, and synchronous=FULL.

    A durable broker drops an event as soon as `record` has responded, so not even a power failure may lose it.
    """
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _reason(error: Exception) -> str:
    """Return the error as one line, with a remedy if one is known."""
    if isinstance(error, ImportError):
        return "PostgreSQL needs psycopg: pip install 'psycopg[binary]'"
    if isinstance(error, NoSuchModuleError):
        return TAKEN
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _without_password(url: str) -> str:
    """Return the URL without its password, for messages; for an invalid URL, only the part after the last @."""
    try:
        return make_url(url).render_as_string(hide_password=True) if "://" in url else url
    except (ArgumentError, ValueError):
        return url.rpartition("@")[2]
