"""Versions of the journal's tables: finds the version of the tables and migrates older ones. Used by `database`.

Each change to `schema` is a new version, and adds a function to `MIGRATIONS`. On SQLite and PostgreSQL alike, one
process at a time creates or migrates the tables, in one transaction. If the process is killed during the transaction,
the database stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Integer, MetaData, Table, delete, insert, inspect, select, text
from sqlalchemy.schema import CreateIndex, CreateTable

from eventing.journal.schema import ATTEMPTS, METADATA

VERSION_TABLE = Table("journal_version", MetaData(), Column("version", Integer, nullable=False))
"""Table whose only row contains the version. A database with version 0 or 1 may lack this table."""


def build_lock_statements(key: int) -> tuple[str, ...]:
    """Return the statements that let one PostgreSQL client at a time continue, until its transaction ends.

    Other clients wait up to 5 seconds. If a client's host disappears, the server ends its transaction after 10 seconds
    of inactivity; without this setting the server would wait two hours.
    """
    limits = "SET LOCAL lock_timeout = '5s'", "SET LOCAL idle_in_transaction_session_timeout = '10s'"
    return *limits, f"SELECT pg_advisory_xact_lock({key})"


MIGRATION_LOCK_STATEMENTS = {
    "sqlite": ("BEGIN IMMEDIATE",),  # Python's driver does not begin a transaction before CREATE or ALTER.
    "postgresql": build_lock_statements(7305804385369681513),
}
"""Statements that let one process at a time migrate, until its transaction ends."""


class UnsupportedVersion(Exception):
    """The tables' version is not supported; the message names it, the supported version and the remedy."""


class OutdatedVersion(UnsupportedVersion):
    """The tables have an older version, which can be migrated."""


def check_version(connection: Connection) -> bool:
    """Return whether the tables exist and have the current version; False if there are none.

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
    """Return whether the database has the table that contains the version."""
    return inspect(connection).has_table(VERSION_TABLE.name)


def require_current_version(connection: Connection) -> None:
    """Raise `UnsupportedVersion` if the tables were migrated after they were opened; runs one small SELECT."""
    version = connection.scalar(select(VERSION_TABLE.c.version))
    if version != SCHEMA_VERSION:
        raise UnsupportedVersion(_format_newer_version(version))


def upgrade(connection: Connection) -> None:
    """Create the tables, or migrate those of an older version, in one transaction.

    The connection must not have accessed any table before. Raises `UnsupportedVersion` for a newer version.
    """
    for statement in MIGRATION_LOCK_STATEMENTS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    version = _read_version(connection)  # Another process may have migrated the tables during the wait for the lock.
    if version is None:
        _create_tables(connection)
    for migrate in MIGRATIONS[version:] if version is not None else ():
        migrate(connection)
    connection.execute(CreateTable(VERSION_TABLE, if_not_exists=True))
    connection.execute(delete(VERSION_TABLE))
    connection.execute(insert(VERSION_TABLE).values(version=SCHEMA_VERSION))


def _read_version(connection: Connection) -> int | None:
    """Return the tables' version, or None if a table is missing. Raises `UnsupportedVersion` for a newer version."""
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
    """Migrate from version 0 to 1: add the size of attempts, which retention by size counts."""
    connection.execute(text("ALTER TABLE attempts ADD COLUMN size INTEGER NOT NULL DEFAULT 0"))
    connection.execute(text("UPDATE attempts SET size = length(replies) + length(error)"))


MIGRATIONS: Sequence[Callable[[Connection], None]] = (_add_size_of_attempts,)
"""Functions that migrate the tables from one version to the next, starting with version 0."""
SCHEMA_VERSION = len(MIGRATIONS)
"""Version of the tables in `schema`."""
