"""Tests of journals with other schema versions: older ones are migrated and newer ones refused, on both databases."""

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

from console.cli import commands
from eventing import events
from eventing.journal.database import engine_of
from eventing.journal.migrations import VERSION
from eventing.journal.sizes import ATTEMPT_ROWS, EVENT_ROWS
from eventing.journal.store import Attempt, Journal, JournalError, Query
from tests.postgresql import PostgreSQL

EVENTS = [
    CloudEvent({"id": str(number), "source": "/x", "type": events.NODE_CORDONED, "datacontenttype": "application/json"})
    for number in range(3)
]
NOW = datetime.now(timezone.utc)
REPLIES = '[{"id": "r"}]'
TAKEN = 3 * (EVENT_ROWS + 100 + 2 * len(f"0/x{events.NODE_CORDONED}")) + (
    ATTEMPT_ROWS + len(REPLIES) + len("busy") + 2 * len("0/xtaint")
)
"""Bytes of three events of 100 bytes each and of an attempt; the key texts count twice, for row and index."""
MIGRATE_AND_WAIT = """
import signal, sys
from eventing.journal.database import engine_of
from eventing.journal.migrations import upgrade
with engine_of(sys.argv[1]).begin() as connection:
    upgrade(connection)
    print("migrated, not committed", flush=True)
    signal.pause()
"""
VERSION_0 = """
CREATE TABLE events (seq {number} PRIMARY KEY, source TEXT NOT NULL, id TEXT NOT NULL, destination TEXT NOT NULL,
    type TEXT NOT NULL, node TEXT NOT NULL, maintenance TEXT NOT NULL, name TEXT NOT NULL,
    arrived DOUBLE PRECISION NOT NULL, size INTEGER NOT NULL, UNIQUE (id, source, destination));
CREATE TABLE bodies (seq BIGINT PRIMARY KEY, event TEXT NOT NULL);
CREATE TABLE attempts (event TEXT, source TEXT, function TEXT, at DOUBLE PRECISION, replay TEXT,
    seconds DOUBLE PRECISION NOT NULL, status INTEGER NOT NULL, replies TEXT NOT NULL, error TEXT NOT NULL,
    PRIMARY KEY (event, source, function, at, replay))
"""
"""The schema before attempts had a size, and before the tables had a version."""


@pytest.fixture
def older(journal_url: str) -> Iterator[str]:
    """Yield the URL of a journal of version 0 with three events, and an attempt on the first."""
    engine = engine_of(journal_url)
    number = "INTEGER" if engine.dialect.name == "sqlite" else "BIGSERIAL"
    with engine.begin() as connection:
        for statement in VERSION_0.format(number=number).split(";"):
            connection.execute(text(statement))
        for seq, event in enumerate(EVENTS, start=1):
            row = {"seq": seq, "id": event.get_id(), "type": event.get_type(), "arrived": NOW.timestamp() + seq}
            connection.execute(
                text("INSERT INTO events VALUES (:seq, '/x', :id, '', :type, '', '', '', :arrived, 100)"), row
            )
            body = {"seq": seq, "event": JSONFormat().write(event).decode()}
            connection.execute(text("INSERT INTO bodies VALUES (:seq, :event)"), body)
        attempt = {"at": NOW.timestamp(), "replies": REPLIES}
        connection.execute(
            text("INSERT INTO attempts VALUES ('0', '/x', 'taint', :at, '', 0.5, 503, :replies, 'busy')"), attempt
        )
    yield journal_url
    engine.dispose()


def ids(journal: Journal) -> list[str]:
    return [str(entry.event.get_id()) for entry in journal.select()]


def version(url: str) -> object:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = connection.scalar(text("SELECT version FROM journal_version"))
    engine.dispose()
    return found


def declare(url: str, number: int) -> None:
    """Set the version that the tables claim to have."""
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE journal_version SET version = :number"), {"number": number})
    engine.dispose()


def test_an_older_journal_is_migrated_and_loses_nothing(older: str) -> None:
    """X-2: A migration keeps events and attempts, and afterwards the journal accepts and measures new attempts."""
    with closing(Journal(older)) as journal:
        assert ids(journal) == ["0", "1", "2"]
        assert journal.select()[0].attempts == (Attempt("/x", "0", "taint", NOW, 0.5, 503, ({"id": "r"},), "busy"),)
        assert journal.size() == TAKEN
        journal.write_attempts([Attempt("/x", "1", "taint", NOW, 0.5, 204)])
        assert [len(entry.attempts) for entry in journal.select(Query(failed=True))] == [1]

    with closing(Journal(older)) as again:
        assert ids(again) == ["0", "1", "2"]
    assert version(older) == VERSION


def test_a_writer_notices_that_a_newer_release_has_migrated_the_journal(journal_url: str) -> None:
    """Check that a writer refuses to write to a journal that a newer release has migrated.

    During an upgrade, the old and the new release run at the same time.
    """
    with closing(Journal(journal_url)) as journal:
        declare(journal_url, VERSION + 1)

        with pytest.raises(JournalError, match=f"version {VERSION + 1}.*none after {VERSION}"):
            journal.write_attempts([Attempt("/x", "1", "taint", NOW, 0.5, 204)])

        declare(journal_url, VERSION)
        journal.write_attempts([Attempt("/x", "2", "taint", NOW, 0.5, 204)])
        assert journal.size() == ATTEMPT_ROWS + 2 * len("2/xtaint") + len("[]")


def test_a_new_journal_has_a_version(journal_url: str) -> None:
    """Check that a new journal has the version of this program."""
    Journal(journal_url).close()

    assert version(journal_url) == VERSION


def test_tables_of_today_without_a_version_are_of_version_1(journal_url: str) -> None:
    """Check that tables of the current schema without a version count as version 1, as old releases created them."""
    with closing(Journal(journal_url)) as journal:
        journal.write(EVENTS[0])
    engine = engine_of(journal_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE journal_version"))
    engine.dispose()

    for create in (False, True):
        with closing(Journal(journal_url, create=create)) as journal:
            assert ids(journal) == ["0"]


@pytest.mark.parametrize(
    "how", [{"create": False}, {"create": False, "awaited": True}, {"create": True}], ids=["read", "await", "write"]
)
def test_a_newer_journal_is_refused(journal_url: str, how: dict[str, bool]) -> None:
    """Check that a newer journal is refused unchanged, with a message that names journal, versions and remedy."""
    Journal(journal_url).close()
    declare(journal_url, VERSION + 1)

    with pytest.raises(JournalError, match=f"version {VERSION + 1}, .* after {VERSION}: use the release") as error:
        Journal(journal_url, **how)
    assert journal_url.rpartition("/")[2] in str(error.value)
    assert version(journal_url) == VERSION + 1


def test_a_reader_of_an_older_journal_is_told_who_migrates_it(older: str, postgresql: PostgreSQL) -> None:
    """Check that opening an older journal read-only names both versions and the remedy, and migrates nothing."""
    reader = postgresql.reader_of(older) if "://" in older else older

    with pytest.raises(JournalError, match=f"version 0, .* version {VERSION}: the function record migrates it"):
        Journal(reader, create=False)
    if reader != older:
        with pytest.raises(JournalError, match=r"must be owner of table attempts|permission denied"):
            Journal(reader)
    with closing(Journal(older)) as journal:
        assert ids(journal) == ["0", "1", "2"]


def test_a_reader_that_waits_migrates_nothing_and_goes_on_once_somebody_has(older: str) -> None:
    """Check that a waiting reader migrates nothing, and reads once another process has migrated the journal.

    Otherwise a new console could migrate the tables of an older `record`, which does not support the new schema.
    """
    with closing(Journal(older, create=False, awaited=True)) as reader:
        for _ in range(2):
            with pytest.raises(JournalError, match=r"version 0, .*: the function record migrates it"):
                reader.select()

        Journal(older).close()

        assert ids(reader) == ["0", "1", "2"]


@pytest.mark.slow
def test_a_migration_killed_half_way_is_done_again(older: str) -> None:
    """X-2: A migration that is killed before its commit is repeated when the journal is opened next."""
    child = subprocess.Popen([sys.executable, "-c", MIGRATE_AND_WAIT, older], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "migrated, not committed\n"
        with pytest.raises(JournalError, match="version 0"):
            Journal(older, create=False)
    finally:
        child.kill()
        child.communicate(timeout=10)

    with closing(Journal(older)) as journal:
        assert ids(journal) == ["0", "1", "2"]
        assert journal.size() == TAKEN
    assert version(older) == VERSION


@pytest.mark.slow
def test_several_that_open_an_older_journal_at_once_migrate_it_once(older: str) -> None:
    """Check that processes that open an older journal concurrently wait for each other, and migrate it once."""
    open_it = "import sys; from eventing.journal.store import Journal; print(len(Journal(sys.argv[1]).select()))"
    children = [
        subprocess.Popen([sys.executable, "-c", open_it, older], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]

    assert [child.communicate(timeout=60)[0] for child in children] == ["3\n"] * 3


def test_the_command_that_the_message_names_migrates(older: str) -> None:
    """Check that the command in the error message migrates a copy of a journal that no function writes to."""
    result = CliRunner().invoke(commands, ["events", "--journal", older, "--import", "/dev/null"])

    assert result.exit_code == 0, result.output
    assert version(older) == VERSION
