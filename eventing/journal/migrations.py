"""Versions of the journal's tables: which one a database holds, and how an older one is migrated. Used by `database`.

A change of `schema` is a new version: it adds a function to `MIGRATIONS`. Alike on SQLite and PostgreSQL, a database
is made or migrated in one transaction, by one process at a time: killed half-way, it is as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Integer, MetaData, Table, delete, insert, inspect, select, text
from sqlalchemy.schema import CreateIndex, CreateTable

from eventing.journal.schema import ATTEMPTS, METADATA

VERSIONS = Table("journal_version", MetaData(), Column("version", Integer, nullable=False))
"""One row. A database of version 0 or 1 may be without this table."""


def turn(key: int) -> tuple[str, ...]:
    """What lets one process of a PostgreSQL at a time go on, until the end of its transaction; others wait for 5 s.

    One whose machine is gone without a word has its transaction ended, for which the server would wait two hours.
    """
    limits = "SET LOCAL lock_timeout = '5s'", "SET LOCAL idle_in_transaction_session_timeout = '10s'"
    return *limits, f"SELECT pg_advisory_xact_lock({key})"


LOCKS = {
    "sqlite": ("BEGIN IMMEDIATE",),  # Python's driver begins no transaction before a CREATE or ALTER by itself
    "postgresql": turn(7305804385369681513),
}
"""What lets one process at a time migrate, until the end of its transaction."""


class WrongVersion(Exception):
    """The tables are of a version that cannot be used; the message names it, the one wanted, and the remedy."""


class OlderVersion(WrongVersion):
    """They are of one that can be migrated."""


def check(connection: Connection) -> bool:
    """Whether the tables are there in the version wanted; False when there are none.

    Raises `OlderVersion`, where whoever may write calls `upgrade` in its place, and `WrongVersion` for a newer one.
    """
    version = _version(connection)
    if version is not None and version < VERSION:
        raise OlderVersion(
            f"its tables are of version {version}, this program reads version {VERSION}: the function record migrates "
            "it, and so does kubectl maintenance events --journal JOURNAL --import /dev/null"
        )
    return version is not None


def is_current(connection: Connection) -> bool:
    """Whether there is nothing to make or migrate. Raises `WrongVersion` for a newer one."""
    return _version(connection) == VERSION and is_versioned(connection)


def is_versioned(connection: Connection) -> bool:
    """Whether the database itself says of which version its tables are."""
    return inspect(connection).has_table(VERSIONS.name)


def require_current(connection: Connection) -> None:
    """Raises `WrongVersion` when the tables were migrated since they were opened; costs one small SELECT."""
    version = connection.scalar(select(VERSIONS.c.version))
    if version != VERSION:
        raise WrongVersion(_newer(version))


def upgrade(connection: Connection) -> None:
    """Make the tables, or migrate those of an older version, in the transaction that this begins.

    In: a connection on which no table was touched yet. Raises `WrongVersion` for a newer one.
    """
    for statement in LOCKS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    version = _version(connection)  # another process may have migrated it while we waited
    if version is None:
        _create_tables(connection)
    for migrate in MIGRATIONS[version:] if version is not None else ():
        migrate(connection)
    connection.execute(CreateTable(VERSIONS, if_not_exists=True))
    connection.execute(delete(VERSIONS))
    connection.execute(insert(VERSIONS).values(version=VERSION))


def _version(connection: Connection) -> int | None:
    """The version of the tables, None when they are not all there. Raises `WrongVersion` for a newer one."""
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
    """0 to 1: retention by size counts attempts as well as events."""
    connection.execute(text("ALTER TABLE attempts ADD COLUMN size INTEGER NOT NULL DEFAULT 0"))
    connection.execute(text("UPDATE attempts SET size = length(replies) + length(error)"))


MIGRATIONS: Sequence[Callable[[Connection], None]] = (_add_size_of_attempts,)
"""What brings the tables from each version to the next, beginning with version 0."""
VERSION = len(MIGRATIONS)
"""Of the tables in `schema`."""
