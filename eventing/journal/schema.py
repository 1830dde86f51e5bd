"""The journal's tables, identical on SQLite and PostgreSQL; each change is a new version, see `migrations`.

The searchable columns are in a different table from the events themselves. Even a search without an index therefore
reads few bytes per event.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
)

METADATA = MetaData()
SEQ_TYPE = BigInteger().with_variant(Integer, "sqlite")
"""SQLite generates row numbers only for a primary key column of type INTEGER."""

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
"""One row per event, and one more for each destination for which the event became a dead letter."""
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
