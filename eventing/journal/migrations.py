"""Versions of the journal's tables: finds a database's version and migrates older ones. Used by `database`.

Each change of `schema` is a new version, and adds a function to `MIGRATIONS`. On SQLite and PostgreSQL alike, one
process at a time creates or migrates the tables, in one transaction. If the process is killed meanwhile, the database
stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Integer, MetaData, Table, delete, insert, inspect, select, text
from sqlalchemy.schema import CreateIndex, CreateTable

from eventing.journal.schema import ATTEMPTS, METADATA

VERSIONS = Table("journal_version", MetaData(), Column("version", Integer, nullable=False))
"""Table that holds the version in its only row. A database of version 0 or 1 may lack this table."""


def turn(key: int) -> tuple[str, ...]:
    """Return the statements that let one PostgreSQL client at a time continue, until its transaction ends.

    Other clients wait up to 5 seconds. If a client's host disappears, the server ends its transaction after 10 seconds
    of inactivity; without this setting the server would wait two hours.
    """
    limits = "SET LOCAL lock_timeout = '5s'", "SET LOCAL idle_in_transaction_session_timeout = '10s'"
    return *limits, f"SELECT pg_advisory_xact_lock({key})"


LOCKS = {
    "sqlite": ("BEGIN IMMEDIATE",),  # Python's driver does not begin a transaction before CREATE or ALTER
    "postgresql": turn(7305804385369681513),
}
"""Statements that let one process at a time migrate, until its transaction ends."""


class WrongVersion(Exception):
    """The tables' version is not supported; the message names it, the supported version and the remedy."""


class OlderVersion(WrongVersion):
    """The tables are of an older version, which can be migrated."""


def check(connection: Connection) -> bool:
    """Return whether the tables exist in the current version; False if there are none.

    Raises `OlderVersion` for tables that can be migrated, and `WrongVersion` for a newer version. A caller with write
    permission calls `upgrade` instead.
    """
    version = _version(connection)
    if version is not None and version < VERSION:
        raise OlderVersion(
            f"its tables are of version {version}, this program reads version {VERSION}: the function record migrates "
            "it, and so does kubectl maintenance events --journal JOURNAL --import /dev/null"
        )
    return version is not None


def is_current(connection: Connection) -> bool:
    """Return whether nothing has to be created or migrated. Raises `WrongVersion` for a newer version."""
    return _version(connection) == VERSION and is_versioned(connection)


def is_versioned(connection: Connection) -> bool:
    """Return whether the database has the table that holds the version."""
    return inspect(connection).has_table(VERSIONS.name)


def require_current(connection: Connection) -> None:
    """Raise `WrongVersion` if the tables were migrated after they were opened; costs one small SELECT."""
    version = connection.scalar(select(VERSIONS.c.version))
    if version != VERSION:
        raise WrongVersion(_newer(version))


def upgrade(connection: Connection) -> None:
    """Create the tables, or migrate those of an older version, in one transaction.

    The connection must not have accessed any table before. Raises `WrongVersion` for a newer version.
    """
    for statement in LOCKS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    version = _version(connection)  # another process may have migrated the tables while this one waited
    if version is None:
        _create_tables(connection)
    for migrate in MIGRATIONS[version:] if version is not None else ():
        migrate(connection)
    connection.execute(CreateTable(VERSIONS, if_not_exists=True))
    connection.execute(delete(VERSIONS))
    connection.execute(insert(VERSIONS).values(version=VERSION))


def _version(connection: Connection) -> int | None:
    """Return the tables' version, or None if some are missing. Raises `WrongVersion` for a newer version."""
    found = inspect(connection)
    names = set(found.get_table_names())
    if VERSIONS.name in names:
        version = connection.scalar(select(VERSIONS.c.version))
        if version is not None and version > VERSION:
            raise WrongVersion(_newer(version))
        return version
    if not METADATA.tables.keys() <= names:
        return None
    return 1 if any(column["name"] == "size" for column in found.get_columns(ATTEMPTS.name)) else 0


def _newer(version: int | None) -> str:
    return (
        f"its tables are of version {version}, this program knows none after {VERSION}: use the release that wrote "
        "it, or a later one"
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
VERSION = len(MIGRATIONS)
"""Version of the tables in `schema`."""
