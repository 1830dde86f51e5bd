"""Connections to the journal's database, SQLite or PostgreSQL, with the same errors for both; used by `store`."""

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

from eventing.http_binding import BadEvent
from eventing.journal import schema
from eventing.journal.fail_fast_lock import CONTENDED_TIMEOUT_SECONDS, FailFastLock
from eventing.journal.schema import OutdatedVersion, UnsupportedVersion

VERSION_CHECK_SECONDS = 1.0
"""Seconds between a writer's checks whether a newer release has migrated the tables.

Each check takes one round trip to the database.
"""
BUSY_TIMEOUT_SECONDS = 5
"""Seconds to wait for another process's lock on the SQLite file, or for a response from PostgreSQL.

The value is below the 10 seconds for which a broker waits for a response from `record`.
"""
POSTGRESQL_OPTIONS = {
    "connect_timeout": BUSY_TIMEOUT_SECONDS,
    "tcp_user_timeout": 1000 * BUSY_TIMEOUT_SECONDS,  # By default, sending to a vanished host is retried for minutes.
    "keepalives_idle": BUSY_TIMEOUT_SECONDS,  # By default, a vanished host's response is awaited for two hours.
    "keepalives_interval": 1,
    "keepalives_count": 5,
    "options": "-c jit=off",  # JIT compilation would take longer than the journal's queries.
}
WRITE_LOCK_STATEMENTS = {"postgresql": schema.build_lock_statements(7305804385369681514)}
"""Statements that allow one process at a time to write, until its transaction ends; SQLite needs no statements."""
PRUNE_LOCK, REDRIVE_LOCK = 7305804385369681515, 7305804385369681516
"""Keys of PostgreSQL advisory locks for pruning and redriving; the latter key is increased by the event's number."""
URL_HINT = "URL is not supported: use a path, sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
InsertFunction = Callable[[Table], sqlite.Insert | postgresql.Insert]
INSERT_FUNCTIONS: Mapping[str, InsertFunction] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""The `insert` function of each dialect, which supports `ON CONFLICT DO NOTHING`."""


class JournalError(OSError):
    """Error for a journal that cannot be opened, read or written; the message contains the journal's URL."""


class JournalNotReady(JournalError):
    """Error for a journal that does not exist yet, whose tables are outdated, or whose server is unreachable.

    The function `record` creates or migrates the journal.
    """


class UnstorableData(BadEvent):
    """Error for a value that the database cannot store, so that a retry cannot succeed."""


class Database:
    """Thread-safe connections to the database of a journal.

    The constructor creates missing tables and migrates tables of an older version. With `create=False`, which needs no
    write permission, it raises `JournalNotReady` instead, also if the server is unreachable. With
    `defer_not_ready=True`, the constructor does not raise it; instead, `connect` and `begin` raise it until the journal
    is ready. Tables of a newer version always raise `JournalError`. A SQLite file that was replaced is reopened.
    """

    def __init__(self, url: str | Path, *, create: bool, defer_not_ready: bool = False) -> None:
        self.url = str(url)
        self._write_lock, self._create = FailFastLock(OperationalError), create
        self._has_version_table, self._next_check_at = False, 0.0
        self._is_open = False
        self._opened_file: tuple[int, int] | None = None
        with self._translate_errors():
            self._path, self._engine = parse_sqlite_path(self.url), create_database_engine(self.url, create=create)
        self.insert: InsertFunction = INSERT_FUNCTIONS[self._engine.dialect.name]
        try:
            self._open()
        except JournalError as error:
            if not (defer_not_ready and isinstance(error, JournalNotReady)):
                self.close()
                raise

    def close(self) -> None:
        """Close all connections to the database."""
        self._engine.dispose()

    def _open(self) -> None:
        opened_file = self._stat_file()
        if self._create:
            self._create_or_migrate()
        elif reason := self._explain_not_ready():
            raise JournalNotReady(f"journal {redact_password(self.url)}: {reason}")
        with self._connect() as connection:
            self._has_version_table = schema.has_version_table(connection)
        self._is_open, self._opened_file = True, opened_file or self._stat_file()

    def _create_or_migrate(self) -> None:
        with self._connect() as connection:
            is_current = schema.is_current(connection)
        if not is_current:
            with self._translate_errors(), self._begin() as connection:
                schema.upgrade(connection)

    def _explain_not_ready(self) -> str:
        """Return why the journal cannot be read yet; "" if it can be read."""
        if self._path is not None and not self._stat_file():
            return "file does not exist yet: the function record creates it"
        with self._connect() as connection:
            try:
                return (
                    ""
                    if schema.check_version(connection)
                    else "database has no journal tables yet: the function record creates them"
                )
            except OutdatedVersion as error:
                return str(error)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection for reading; reopen the SQLite file first if it was replaced.

        Raises `JournalError` for database errors inside the block.
        """
        self._reopen_if_replaced()
        with self._connect() as connection:
            yield connection

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        with self._translate_errors(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def begin(self, contended_timeout: float = CONTENDED_TIMEOUT_SECONDS) -> Iterator[Connection]:
        """Yield a connection with a transaction; only one process writes at a time.

        Writers are serialized so that events appear in the order of their numbers: a reader that has read an event
        never finds a smaller number later.

        Raises `JournalError` for database errors inside the block, after rolling the transaction back. It also raises
        `JournalError` in these cases:

        * The database is unreachable and another thread is already trying to use it: immediately.
        * The database is slow and several threads are waiting: after `contended_timeout` seconds.
        * The SQLite file was replaced: once, after the file has been reopened.
        """
        with self._translate_errors(), self._write_lock.hold(BUSY_TIMEOUT_SECONDS, contended_timeout):
            if self._reopen_if_replaced():
                raise JournalError(f"journal {self.url}: file was removed or replaced, and has been reopened: retry")
            with self._begin() as connection:
                yield connection
                if self._has_version_table and time.monotonic() >= self._next_check_at:
                    self._next_check_at = time.monotonic() + VERSION_CHECK_SECONDS
                    # Raises an error, which rolls back the write, if a newer release has migrated the tables.
                    schema.require_current_version(connection)

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            for statement in WRITE_LOCK_STATEMENTS.get(self._engine.dialect.name, ()):
                connection.exec_driver_sql(statement)
            yield connection

    def _reopen_if_replaced(self) -> bool:
        """Open the database if it is not open, or reopen it if its SQLite file was replaced.

        Otherwise, SQLite would continue to use the deleted file. Returns whether the file was replaced. Raises
        `JournalError` if the database cannot be opened.
        """
        is_same = self._stat_file() == self._opened_file
        if self._is_open and is_same:
            return False
        was_opened, self._is_open = self._opened_file is not None, False
        self._engine.dispose()
        self._open()
        return was_opened and not is_same

    def _stat_file(self) -> tuple[int, int] | None:
        """Return the device and inode of the SQLite file, None if the file does not exist."""
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def try_lock(self, lock_key: int) -> Iterator[bool]:
        """Try to hold a PostgreSQL advisory lock during the block; yield whether the lock was acquired.

        For SQLite, always yields True, because only one process writes such a journal.
        """
        if self._engine.dialect.name != "postgresql":
            yield True
            return
        with self.connect() as connection:
            is_locked = bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock_key})").scalar())
            connection.commit()  # The session holds the lock, so the transaction can end here.
            try:
                yield is_locked
            finally:
                if is_locked:
                    connection.exec_driver_sql(f"SELECT pg_advisory_unlock({lock_key})")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (DataError, OverflowError, UnicodeError) as error:
            raise UnstorableData(f"the journal cannot store the value: {_format_reason(error)}") from None
        except (SQLAlchemyError, ImportError, UnsupportedVersion, BlockingIOError) as error:
            is_not_ready = isinstance(error, OperationalError) and self._path is None
            error_class = JournalNotReady if is_not_ready else JournalError
            raise error_class(f"journal {redact_password(self.url)}: {_format_reason(error)}") from None


def parse_sqlite_path(url: str) -> str | None:
    """Return the path of the SQLite file, None for PostgreSQL. Raises `SQLAlchemyError` for an invalid URL."""
    parsed = _parse_url(url)
    return parsed.database or "" if parsed.drivername == "sqlite" else None


def create_database_engine(url: str, *, create: bool = True) -> Engine:
    """Create the SQLAlchemy engine for a database; with `create=False`, SQLite does not create the file.

    Raises `SQLAlchemyError` for an unsupported URL, and `ImportError` if the database driver is not installed.
    """
    parsed = _parse_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
        return create_engine(parsed, connect_args=POSTGRESQL_OPTIONS)
    if parsed.drivername != "sqlite":
        raise ArgumentError(URL_HINT)
    if not create:
        name = f"file:{quote(os.path.abspath(parsed.database or ''))}"
        parsed = parsed.set(database=name).update_query_dict({"mode": "rw", "uri": "true"})
    engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
    hooks.listen(engine, "connect", _set_pragmas)
    return engine


def _parse_url(url: str) -> URL:
    try:
        return make_url(url if "://" in url else f"sqlite:///{url}")
    except ValueError:  # the port is not a number
        raise ArgumentError(URL_HINT) from None


def _set_pragmas(connection: Any, _record: object) -> None:
    """Enable WAL, so that readers and the writer do not block each other, and set synchronous=FULL.

    A durable broker drops an event as soon as `record` has acknowledged it, so the event must survive a power failure.
    """
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _format_reason(error: Exception) -> str:
    """Format the error as one line, with the remedy if one is known."""
    if isinstance(error, ImportError):
        return "psycopg is not installed: run pip install 'psycopg[binary]'"
    if isinstance(error, NoSuchModuleError):
        return URL_HINT
    return " ".join(str(getattr(error, "orig", None) or error).split())


def redact_password(url: str) -> str:
    """Return the URL without its password, for messages; for an invalid URL, return only the part after the last @."""
    try:
        return make_url(url).render_as_string(hide_password=True) if "://" in url else url
    except (ArgumentError, ValueError):
        return url.rpartition("@")[2]
