"""Connections to a journal's database, SQLite or PostgreSQL, with one kind of error for both. Used by `store`."""

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
from eventing.journal.one_tries import CROWDED_SECONDS, OneTries
from eventing.wire import BadEvent

CHECK_SECONDS = 1.0
"""How often a writer looks whether a newer release has migrated the tables: each look costs a round trip."""
BUSY_SECONDS = 5
"""How long one SQLite process waits for another, and any process for PostgreSQL to answer; a broker waits for 10."""
POSTGRESQL = {
    "connect_timeout": BUSY_SECONDS,
    "tcp_user_timeout": 1000 * BUSY_SECONDS,  # a host that has vanished without a word would be tried for minutes
    "keepalives_idle": BUSY_SECONDS,  # or be awaited for two hours, where it owes an answer
    "keepalives_interval": 1,
    "keepalives_count": 5,
    "options": "-c jit=off",  # to compile a query takes longer than any of ours
}
TURNS = {"postgresql": migrations.turn(7305804385369681514)}
"""What lets one process at a time write, until the end of its transaction; SQLite's file does by itself."""
PRUNING, REDRIVING = 7305804385369681515, 7305804385369681516
"""Locks of PostgreSQL: of who prunes; of who redrives a dead letter, whose number is added."""
TAKEN = "take a path, sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"
Insert = Callable[[Table], sqlite.Insert | postgresql.Insert]
INSERTS: Mapping[str, Insert] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""Both say `ON CONFLICT DO NOTHING`, each in a class of its own."""


class JournalError(OSError):
    """The journal cannot be opened, read or written; the message names it."""


class NotYet(JournalError):
    """There is none yet, or one of an older release, which `record` makes or migrates; or its server is away."""


class BadData(BadEvent):
    """The database takes everything but this: trying again changes nothing; the message names the reason."""


class Database:
    """Connections to one database. Safe to share between threads.

    Tables that are missing are made, those of an older version migrated; with `create` off, which asks for no right to
    write, that is a `NotYet`, as a server is that is away. With `awaited` it is one once something is to be read or
    written. Tables of a newer version are a `JournalError` for everybody. A file that was replaced is opened anew.
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
        """Why it cannot be read yet, "" where it can."""
        if self._path is not None and not self._file():
            return "there is no such file yet: the function record makes it"
        with self._connected() as connection:
            try:
                return "" if migrations.check(connection) else "there are no tables of a journal in it"
            except OlderVersion as error:
                return str(error)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection to read from, of what is there now. Raises `JournalError` for what fails inside."""
        self._follow_file()
        with self._connected() as connection:
            yield connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._errors(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, crowded: float = CROWDED_SECONDS) -> Iterator[Connection]:
        """One transaction, one at a time of all processes: a number once seen is never followed by a smaller one.

        Raises `JournalError` for what fails inside, and nothing of it is kept then; at once while the database is away
        and another thread tries it, after `crowded` seconds while it is slow and a few wait, and once when its file is
        another one.
        """
        with self._errors(), self._writer.turn(BUSY_SECONDS, crowded):
            if self._follow_file():
                raise JournalError(f"journal {self.url}: its file was removed or replaced, and is opened anew")
            with self._begun() as connection:
                yield connection
                if self._versioned and time.monotonic() >= self._check_due:
                    self._check_due = time.monotonic() + CHECK_SECONDS
                    migrations.require_current(connection)  # by a newer release: nothing is kept then

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            for statement in TURNS.get(self._engine.dialect.name, ()):
                connection.exec_driver_sql(statement)
            yield connection

    def _follow_file(self) -> bool:
        """Open the one that is there now: SQLite would go on with a file that has no name any more.

        Out: whether it is another one than before. Raises `JournalError` when it cannot be opened.
        """
        is_same = self._file() == self._opened
        if self._is_open and is_same:
            return False
        was_opened, self._is_open = self._opened is not None, False
        self._engine.dispose()
        self._prepare()
        return was_opened and not is_same

    def _file(self) -> tuple[int, int] | None:
        """Device and inode of SQLite's file; None where there is none."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def alone(self, lock: int) -> Iterator[bool]:
        """Whether nobody else of those at a PostgreSQL has this lock; of a SQLite, which is for one process, always."""
        if self._engine.dialect.name != "postgresql":
            yield True
            return
        with self.reading() as connection:
            mine = bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock})").scalar())
            connection.commit()  # the lock is the session's: no transaction stands idle meanwhile
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
    """The path of SQLite's file; None for another database. Raises `SQLAlchemyError` for what is no URL."""
    parsed = _parsed(url)
    return parsed.database or "" if parsed.drivername == "sqlite" else None


def engine_of(url: str, *, create: bool = True) -> Engine:
    """The connections to a database; with `create` off, SQLite makes no file.

    Raises `SQLAlchemyError` or, without the driver, `ImportError`.
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
    except ValueError:  # of a port that is no number
        raise ArgumentError(TAKEN) from None


def _tune(connection: Any, _record: object) -> None:
    """WAL: readers and the writer do not wait for each other. FULL: once `record` has answered, a durable broker
    forgets the event, so that not even a power cut may take it."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _reason(error: Exception) -> str:
    """What went wrong, in one line and with a remedy where we know one."""
    if isinstance(error, ImportError):
        return "PostgreSQL needs psycopg: pip install 'psycopg[binary]'"
    if isinstance(error, NoSuchModuleError):
        return TAKEN
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _without_password(url: str) -> str:
    """The address for a message; of one that cannot be read, what stands behind its last @."""
    try:
        return make_url(url).render_as_string(hide_password=True) if "://" in url else url
    except (ArgumentError, ValueError):
        return url.rpartition("@")[2]
