"""Tests that journals with an older schema are migrated, and journals with a newer schema are rejected."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone

import pytest
from click.testing import CliRunner
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from sqlalchemy import text

from console.cli import cli
from eventing import events
from eventing.journal.database import create_database_engine
from eventing.journal.schema import ATTEMPT_OVERHEAD_BYTES, EVENT_OVERHEAD_BYTES, SCHEMA_VERSION
from eventing.journal.store import Attempt, Journal, JournalError, Query
from tests.postgresql import PostgreSQL

SAMPLE_EVENTS = [
    CloudEvent({"id": str(number), "source": "/x", "type": events.NODE_CORDONED, "datacontenttype": "application/json"})
    for number in range(3)
]
TEST_START = datetime.now(timezone.utc)
REPLIES = '[{"id": "r"}]'
EXPECTED_BYTES = 3 * (EVENT_OVERHEAD_BYTES + 100 + 2 * len(f"0/x{events.NODE_CORDONED}")) + (
    ATTEMPT_OVERHEAD_BYTES + len(REPLIES) + len("busy") + 2 * len("0/xtaint")
)
"""Size of three 100-byte events and one attempt; key columns count twice, because an index repeats them."""
MIGRATE_AND_WAIT_PROGRAM = """
import signal, sys
from eventing.journal.database import create_database_engine
from eventing.journal.schema import upgrade
with create_database_engine(sys.argv[1]).begin() as connection:
    upgrade(connection)
    print("migrated, not committed", flush=True)
    signal.pause()
"""
VERSION_0_SCHEMA = """
CREATE TABLE events (seq {number} PRIMARY KEY, source TEXT NOT NULL, id TEXT NOT NULL, destination TEXT NOT NULL,
    type TEXT NOT NULL, node TEXT NOT NULL, maintenance TEXT NOT NULL, name TEXT NOT NULL,
    arrived DOUBLE PRECISION NOT NULL, size INTEGER NOT NULL, UNIQUE (id, source, destination));
CREATE TABLE bodies (seq BIGINT PRIMARY KEY, event TEXT NOT NULL);
CREATE TABLE attempts (event TEXT, source TEXT, function TEXT, at DOUBLE PRECISION, replay TEXT,
    seconds DOUBLE PRECISION NOT NULL, status INTEGER NOT NULL, replies TEXT NOT NULL, error TEXT NOT NULL,
    PRIMARY KEY (event, source, function, at, replay))
"""
"""The schema of version 0: attempts have no column for their size, and there is no table for the version."""


@pytest.fixture
def older_journal_url(journal_url: str) -> Iterator[str]:
    """Yield the URL of a version 0 journal with three events and one attempt for the first event."""
    engine = create_database_engine(journal_url)
    serial_type = "INTEGER" if engine.dialect.name == "sqlite" else "BIGSERIAL"
    with engine.begin() as connection:
        for statement in VERSION_0_SCHEMA.format(number=serial_type).split(";"):
            connection.execute(text(statement))
        for seq, event in enumerate(SAMPLE_EVENTS, start=1):
            row = {"seq": seq, "id": event.get_id(), "type": event.get_type(), "arrived": TEST_START.timestamp() + seq}
            connection.execute(
                text("INSERT INTO events VALUES (:seq, '/x', :id, '', :type, '', '', '', :arrived, 100)"), row
            )
            body = {"seq": seq, "event": JSONFormat().write(event).decode()}
            connection.execute(text("INSERT INTO bodies VALUES (:seq, :event)"), body)
        attempt = {"at": TEST_START.timestamp(), "replies": REPLIES}
        connection.execute(
            text("INSERT INTO attempts VALUES ('0', '/x', 'taint', :at, '', 0.5, 503, :replies, 'busy')"), attempt
        )
    yield journal_url
    engine.dispose()


def list_event_ids(journal: Journal) -> list[str]:
    return [str(entry.event.get_id()) for entry in journal.select()]


def read_schema_version(url: str) -> object:
    engine = create_database_engine(url)
    with engine.connect() as connection:
        version = connection.scalar(text("SELECT version FROM journal_version"))
    engine.dispose()
    return version


def set_schema_version(url: str, version: int) -> None:
    """Set the schema version that is stored in the journal."""
    engine = create_database_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE journal_version SET version = :version"), {"version": version})
    engine.dispose()


def test_older_journal_is_migrated_without_data_loss(older_journal_url: str) -> None:
    """X-2: a migration keeps events and attempts, and the migrated journal stores new attempts with their sizes."""
    with closing(Journal(older_journal_url)) as journal:
        assert list_event_ids(journal) == ["0", "1", "2"]
        assert journal.select()[0].attempts == (
            Attempt("/x", "0", "taint", TEST_START, 0.5, 503, ({"id": "r"},), "busy"),
        )
        assert journal.measure_bytes() == EXPECTED_BYTES
        journal.write_attempts([Attempt("/x", "1", "taint", TEST_START, 0.5, 204)])
        assert [len(entry.attempts) for entry in journal.select(Query(failed=True))] == [1]

    with closing(Journal(older_journal_url)) as reopened:
        assert list_event_ids(reopened) == ["0", "1", "2"]
    assert read_schema_version(older_journal_url) == SCHEMA_VERSION


def test_writer_rejects_journal_migrated_by_newer_release(journal_url: str) -> None:
    """Check that a running writer stops writing to a journal that a newer release has migrated.

    During an upgrade, the old and the new release run at the same time.
    """
    with closing(Journal(journal_url)) as journal:
        set_schema_version(journal_url, SCHEMA_VERSION + 1)

        with pytest.raises(JournalError, match=f"version {SCHEMA_VERSION + 1}.*versions up to {SCHEMA_VERSION}"):
            journal.write_attempts([Attempt("/x", "1", "taint", TEST_START, 0.5, 204)])

        set_schema_version(journal_url, SCHEMA_VERSION)
        journal.write_attempts([Attempt("/x", "2", "taint", TEST_START, 0.5, 204)])
        assert journal.measure_bytes() == ATTEMPT_OVERHEAD_BYTES + 2 * len("2/xtaint") + len("[]")


def test_new_journal_has_current_schema_version(journal_url: str) -> None:
    """Check that a new journal has the current schema version."""
    Journal(journal_url).close()

    assert read_schema_version(journal_url) == SCHEMA_VERSION


def test_tables_with_current_schema_but_no_version_count_as_version_1(journal_url: str) -> None:
    """Check that tables with the current schema but no version, as early releases created them, count as version 1."""
    with closing(Journal(journal_url)) as journal:
        journal.write_event(SAMPLE_EVENTS[0])
    engine = create_database_engine(journal_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE journal_version"))
    engine.dispose()

    for create in (False, True):
        with closing(Journal(journal_url, create=create)) as journal:
            assert list_event_ids(journal) == ["0"]


@pytest.mark.parametrize(
    "options",
    [{"create": False}, {"create": False, "defer_not_ready": True}, {"create": True}],
    ids=["read", "await", "write"],
)
def test_journal_with_newer_schema_is_rejected(journal_url: str, options: dict[str, bool]) -> None:
    """Check that a journal with a newer schema stays unchanged; the error names journal, versions and remedy."""
    Journal(journal_url).close()
    set_schema_version(journal_url, SCHEMA_VERSION + 1)

    with pytest.raises(
        JournalError, match=f"version {SCHEMA_VERSION + 1}, .* up to {SCHEMA_VERSION}: use the release"
    ) as error:
        Journal(journal_url, **options)
    assert journal_url.rpartition("/")[2] in str(error.value)
    assert read_schema_version(journal_url) == SCHEMA_VERSION + 1


def test_reader_error_for_older_journal_suggests_remedy(older_journal_url: str, postgresql: PostgreSQL) -> None:
    """Check that a reader's error for an older journal names versions and remedy, and that nothing is migrated."""
    reader = postgresql.create_reader_url(older_journal_url) if "://" in older_journal_url else older_journal_url

    message_pattern = f"version 0, .* version {SCHEMA_VERSION}: the function record migrates them"
    with pytest.raises(JournalError, match=message_pattern):
        Journal(reader, create=False)
    if reader != older_journal_url:
        with pytest.raises(JournalError, match=r"must be owner of table attempts|permission denied"):
            Journal(reader)
    with closing(Journal(older_journal_url)) as journal:
        assert list_event_ids(journal) == ["0", "1", "2"]


def test_long_running_reader_does_not_migrate_older_journal(older_journal_url: str) -> None:
    """Check that a reader with `defer_not_ready` migrates nothing, and reads the journal once `record` has migrated it.

    Otherwise, a newer console could migrate tables that an older `record` still uses.
    """
    with closing(Journal(older_journal_url, create=False, defer_not_ready=True)) as reader:
        for _ in range(2):
            with pytest.raises(JournalError, match=r"version 0, .*: the function record migrates them"):
                reader.select()

        Journal(older_journal_url).close()

        assert list_event_ids(reader) == ["0", "1", "2"]


@pytest.mark.slow
def test_migration_of_killed_process_is_repeated(older_journal_url: str) -> None:
    """X-2: if a process is killed before it commits a migration, the next process that opens the journal repeats it."""
    child = subprocess.Popen(
        [sys.executable, "-c", MIGRATE_AND_WAIT_PROGRAM, older_journal_url], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "migrated, not committed\n"
        with pytest.raises(JournalError, match="version 0"):
            Journal(older_journal_url, create=False)
    finally:
        child.kill()
        child.communicate(timeout=10)

    with closing(Journal(older_journal_url)) as journal:
        assert list_event_ids(journal) == ["0", "1", "2"]
        assert journal.measure_bytes() == EXPECTED_BYTES
    assert read_schema_version(older_journal_url) == SCHEMA_VERSION


@pytest.mark.slow
def test_concurrent_processes_migrate_journal_only_once(older_journal_url: str) -> None:
    """Check that processes that open an older journal concurrently wait for each other, and migrate it once."""
    open_script = "import sys; from eventing.journal.store import Journal; print(len(Journal(sys.argv[1]).select()))"
    children = [
        subprocess.Popen([sys.executable, "-c", open_script, older_journal_url], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]

    assert [child.communicate(timeout=60)[0] for child in children] == ["3\n"] * 3


def test_command_in_error_message_migrates_journal(older_journal_url: str) -> None:
    """Check that the command in the error message migrates a journal to which no function writes."""
    result = CliRunner().invoke(cli, ["events", "--journal", older_journal_url, "--import", "/dev/null"])

    assert result.exit_code == 0, result.output
    assert read_schema_version(older_journal_url) == SCHEMA_VERSION
