"""The journal's tables, identical on SQLite and PostgreSQL, their sizes, and the migration of older versions.

The searchable columns and the events themselves are in different tables. Even a search without an index therefore reads
only few bytes per event.

`EVENT_SIZE` and `ATTEMPT_SIZE` define how many bytes an event or attempt takes, including its index entries. The
numbers were measured on SQLite. The SQLite file is at most twice as large, mostly because index pages may be half
empty.

Each change of the tables is a new version, and adds a function to `MIGRATIONS`. On both SQLite and PostgreSQL, only one
process at a time creates or migrates the tables, in one transaction. If the process is killed during the transaction,
the database stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    delete,
    insert,
    inspect,
    literal_column,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

METADATA = MetaData()
SEQ_TYPE = BigInteger().with_variant(Integer, "sqlite")
"""Type of a `seq` column; SQLite generates row numbers only for a primary key of type INTEGER."""
EVENT_OVERHEAD_BYTES, ATTEMPT_OVERHEAD_BYTES = 200, 150
"""Bytes that each event and each attempt takes in addition to its texts, including all index entries."""
PAGE_BYTES, MAX_SHARED_KEY_BYTES = 4096, 950
"""Size of a SQLite page, and of the longest index key that needs no overflow page, in bytes."""

EVENTS = Table(
    "events",
    METADATA,
    Column("seq", SEQ_TYPE, primary_key=True),
    Column("source", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column(
        "destination",
        Text,
        nullable=False,
        comment="the subscriber of a dead letter, otherwise empty",
    ),
    Column("type", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("maintenance", Text, nullable=False, comment="uid of the maintenance"),
    Column("name", Text, nullable=False, comment="name of the maintenance"),
    Column("arrived", Double, nullable=False, comment="seconds since 1970"),
    Column("size", Integer, nullable=False, comment="bytes of the event"),
    UniqueConstraint("id", "source", "destination"),
)
"""Table with one row per event, and another row for each destination for which the event became a dead letter."""
Index("events_by_type", EVENTS.c.type)
Index("events_by_node", EVENTS.c.node)
Index("events_by_maintenance", EVENTS.c.maintenance)
Index("events_by_name", EVENTS.c.name)
Index("events_by_arrival", EVENTS.c.arrived)
IS_DEAD_LETTER = EVENTS.c.destination != literal_column("''")
Index("dead_events", EVENTS.c.seq, sqlite_where=IS_DEAD_LETTER, postgresql_where=IS_DEAD_LETTER)

BODIES = Table(
    "bodies",
    METADATA,
    Column("seq", SEQ_TYPE, primary_key=True, autoincrement=False),
    Column("event", Text, nullable=False, comment="the whole event in the JSON format"),
)

ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("event", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("function", Text, primary_key=True),
    Column("at", Double, primary_key=True, comment="seconds since 1970"),
    Column("replay", Text, primary_key=True),
    Column("seconds", Double, nullable=False),
    Column("status", Integer, nullable=False),
    Column("replies", Text, nullable=False, comment="a JSON list of events"),
    Column("error", Text, nullable=False),
    Column("size", Integer, nullable=False, comment="bytes of replies and error"),
)
Index("attempts_by_time", ATTEMPTS.c.at)
IS_FAILED_ATTEMPT = (ATTEMPTS.c.status >= literal_column("400")) & (ATTEMPTS.c.replay == literal_column("''"))
Index(
    "failed_attempts",
    ATTEMPTS.c.event,
    ATTEMPTS.c.source,
    sqlite_where=IS_FAILED_ATTEMPT,
    postgresql_where=IS_FAILED_ATTEMPT,
)


class octet_length(GenericFunction[int]):  # noqa: N801 - the SQL function's name
    """The SQL function for the number of bytes in a text; `length` counts characters instead."""

    type = Integer()
    inherit_cache = True


@compiles(octet_length, "sqlite")
def _compile_octet_length(element: octet_length, compiler: SQLCompiler, **kwargs: Any) -> str:
    """Compile `octet_length` for SQLite, which has such a function only since version 3.43."""
    return f"length(CAST({compiler.process(element.clauses, **kwargs)} AS BLOB))"


def _estimate_key_bytes(text: ColumnElement[str]) -> ColumnElement[int]:
    """Build the SQL expression for the number of bytes that a text takes in its row and in an index."""
    length = octet_length(text)
    return 2 * length + (length + (PAGE_BYTES - MAX_SHARED_KEY_BYTES)) // PAGE_BYTES * PAGE_BYTES


EVENT_SIZE: ColumnElement[int] = (
    EVENT_OVERHEAD_BYTES
    + EVENTS.c.size
    + _estimate_key_bytes(EVENTS.c.id + EVENTS.c.source + EVENTS.c.destination)
    + 2 * octet_length(EVENTS.c.type + EVENTS.c.node + EVENTS.c.maintenance + EVENTS.c.name)
)
ATTEMPT_SIZE: ColumnElement[int] = (
    ATTEMPT_OVERHEAD_BYTES
    + ATTEMPTS.c.size
    + _estimate_key_bytes(ATTEMPTS.c.event + ATTEMPTS.c.source + ATTEMPTS.c.function + ATTEMPTS.c.replay)
)

VERSION_TABLE = Table("journal_version", MetaData(), Column("version", Integer, nullable=False))
"""Table whose only row contains the tables' version; databases with version 0 or 1 may lack this table."""


def build_lock_statements(key: int) -> tuple[str, ...]:
    """Return the statements that allow one PostgreSQL client at a time to continue, until its transaction ends.

    Other clients wait up to 5 seconds. If a client's host disappears, the server ends the client's transaction after 10
    seconds of inactivity; by default, the server would wait two hours.
    """
    limits = "SET LOCAL lock_timeout = '5s'", "SET LOCAL idle_in_transaction_session_timeout = '10s'"
    return *limits, f"SELECT pg_advisory_xact_lock({key})"


MIGRATION_LOCK_STATEMENTS = {
    "sqlite": ("BEGIN IMMEDIATE",),  # Python's driver begins no transaction before CREATE or ALTER.
    "postgresql": build_lock_statements(7305804385369681513),
}
"""Statements that allow one process at a time to migrate the tables, until its transaction ends."""


class UnsupportedVersion(Exception):
    """Error for tables of an unsupported version; it names that version, the supported one and the remedy."""


class OutdatedVersion(UnsupportedVersion):
    """Error for tables of an older version, which can be migrated."""


def check_version(connection: Connection) -> bool:
    """Return whether the tables exist and have the current version; False if they do not exist.

    Raises `OutdatedVersion` for tables that can be migrated, and `UnsupportedVersion` for a newer version. A caller
    with write permission calls `upgrade` instead.
    """
    version = _read_version(connection)
    if version is not None and version < SCHEMA_VERSION:
        raise OutdatedVersion(
            f"tables have version {version}, but this program reads version {SCHEMA_VERSION}: "
            "the function record migrates them; or run kubectl maintenance events --journal JOURNAL --import /dev/null"
        )
    return version is not None


def is_current(connection: Connection) -> bool:
    """Return whether all tables exist and have the current version. Raises `UnsupportedVersion` for a newer version."""
    return _read_version(connection) == SCHEMA_VERSION and has_version_table(connection)


def has_version_table(connection: Connection) -> bool:
    """Return whether the table with the version of the schema exists."""
    return inspect(connection).has_table(VERSION_TABLE.name)


def require_current_version(connection: Connection) -> None:
    """Raise `UnsupportedVersion` if the tables were migrated after they were opened; this takes one small SELECT."""
    version = connection.scalar(select(VERSION_TABLE.c.version))
    if version != SCHEMA_VERSION:
        raise UnsupportedVersion(_format_newer_version(version))


def upgrade(connection: Connection) -> None:
    """Create the tables, or migrate tables of an older version, in one transaction.

    The connection must not have accessed any table yet. Raises `UnsupportedVersion` for a newer version.
    """
    for statement in MIGRATION_LOCK_STATEMENTS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    version = _read_version(connection)  # Read after locking, because another process may have migrated the tables.
    if version is None:
        _create_tables(connection)
    for migrate in MIGRATIONS[version:] if version is not None else ():
        migrate(connection)
    connection.execute(CreateTable(VERSION_TABLE, if_not_exists=True))
    connection.execute(delete(VERSION_TABLE))
    connection.execute(insert(VERSION_TABLE).values(version=SCHEMA_VERSION))


def _read_version(connection: Connection) -> int | None:
    """Return the tables' version, None if a table is missing. Raises `UnsupportedVersion` for a newer version."""
    inspector = inspect(connection)
    names = set(inspector.get_table_names())
    if VERSION_TABLE.name in names:
        version = connection.scalar(select(VERSION_TABLE.c.version))
        if version is not None and version > SCHEMA_VERSION:
            raise UnsupportedVersion(_format_newer_version(version))
        return version
    if not METADATA.tables.keys() <= names:
        return None
    return 1 if any(column["name"] == "size" for column in inspector.get_columns(ATTEMPTS.name)) else 0


def _format_newer_version(version: int | None) -> str:
    return (
        f"tables have version {version}, but this program supports versions up to {SCHEMA_VERSION}: "
        "use the release that wrote them, or a later one"
    )


def _create_tables(connection: Connection) -> None:
    for table in METADATA.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(CreateIndex(index, if_not_exists=True))


def _add_size_of_attempts(connection: Connection) -> None:
    """Migrate from version 0 to 1: add the size of attempts, which the retention by size counts."""
    connection.execute(text("ALTER TABLE attempts ADD COLUMN size INTEGER NOT NULL DEFAULT 0"))
    connection.execute(text("UPDATE attempts SET size = length(replies) + length(error)"))


MIGRATIONS: Sequence[Callable[[Connection], None]] = (_add_size_of_attempts,)
"""Functions that migrate the tables from one version to the next, starting with version 0."""
SCHEMA_VERSION = len(MIGRATIONS)
"""Current version of the tables."""
