"""Tests for the journal on real databases."""

from __future__ import annotations

import sqlite3
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent
from sqlalchemy import text

from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.events import ObjectReference, build_event
from eventing.http_binding import BadEvent
from eventing.journal.database import PRUNE_LOCK
from eventing.journal.entries import get_object_identity, list_unresolved_failures, strip_data
from eventing.journal.store import Attempt, Entry, Journal, JournalError, Query
from eventing.replay.redrive import awaits_redrive
from tests.localcluster.commands import wait_until
from tests.machine_speed import is_below_scaled_limit
from tests.postgresql import PostgreSQL

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
OTHER_MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "other", "uid-2")
TEST_START = datetime.now(timezone.utc)


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    with closing(Journal(journal_url)) as new_journal:
        yield new_journal


def build_numbered_event(
    number: int, reference: ObjectReference = MAINTENANCE, event_type: str = events.NODE_CORDONED, **extensions: Any
) -> CloudEvent:
    return build_event(
        event_type, "cordon", reference, "node-1", seed=str(number), data={"number": number}, **extensions
    )


def list_event_numbers(entries: list[Entry]) -> list[int]:
    return [data["number"] for entry in entries if isinstance(data := entry.event.get_data(), dict)]


def build_attempt(event: BaseCloudEvent, status: int = 204, **fields: Any) -> Attempt:
    return Attempt(event.get_source(), event.get_id(), "taint", TEST_START, 0.5, status, **fields)


def build_api_event(kind: str, resource: dict[str, Any]) -> CloudEvent:
    attributes = {"id": resource["metadata"]["name"], "source": "/apis", "type": events.RESOURCE_ADDED, "kind": kind}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, resource)


def test_duplicate_events_are_stored_once_in_order_of_arrival(journal: Journal) -> None:
    """X-2: an event with the source and id of a recorded event is not stored again; entries are in order of arrival."""
    are_new = [journal.write_event(build_numbered_event(number)) for number in (2, 1, 2, 3, 1)]

    entries = journal.select()

    assert are_new == [True, True, False, True, False]
    assert list_event_numbers(entries) == [2, 1, 3]
    assert [entry.seq for entry in entries] == sorted(entry.seq for entry in entries)
    assert all(TEST_START <= entry.arrived <= datetime.now(timezone.utc) for entry in entries)


def test_entries_are_ordered_by_arrival(journal: Journal) -> None:
    """X-2: entries are sorted by arrival time, even if concurrent requests are written in a different order."""
    first, second = TEST_START, TEST_START + timedelta(seconds=1)
    journal.write_event(build_numbered_event(2), second)
    journal.write_event(build_numbered_event(1), first)

    assert [entry.event.get_id() for entry in journal.select()] == [
        build_numbered_event(1).get_id(),
        build_numbered_event(2).get_id(),
    ]


@pytest.mark.parametrize(
    "data", [{"some": "ünïcode\x00 and NUL"}, ["a list"], "text that is not JSON", b"\xff\x00", None], ids=str
)
def test_event_is_returned_unchanged(journal: Journal, data: Any) -> None:
    """X-2: attributes, extensions and data are returned unchanged, so that the event can be posted again."""
    attributes = {"id": "1", "source": "/x", "type": "x", "partitionkey": "node-1", "time": TEST_START}
    if not isinstance(data, (str, bytes)):
        attributes["datacontenttype"] = "application/json"
    else:
        attributes["datacontenttype"] = "text/plain"
    event = CloudEvent(attributes, data)
    journal.write_event(event)

    (entry,) = journal.select()

    assert entry.event.get_attributes() == event.get_attributes()
    assert entry.event.get_data() == data


def test_event_of_maximum_size_is_returned(journal: Journal) -> None:
    """X-2: an event with 2 MiB of data, the ingress limit, can be stored and read, although its JSON is larger."""
    data = b"\xff" * (2 * 1024 * 1024)
    journal.write_event(CloudEvent({"id": "1", "source": "/x", "type": "x", "datacontenttype": "image/png"}, data))

    assert journal.select()[0].event.get_data() == data


def test_events_are_kept_across_restart(journal_url: str) -> None:
    """X-2: after a restart, recorded events are returned, and are recognized as duplicates when sent again."""
    with closing(Journal(journal_url)) as first:
        first.write_event(build_numbered_event(1))

    with closing(Journal(journal_url)) as second:
        assert second.write_event(build_numbered_event(1)) is False
        assert len(second.select()) == 1


def test_journal_is_readable_with_read_permission_only(journal_url: str, postgresql: PostgreSQL) -> None:
    """Check that a PostgreSQL user with only the permission to read can read a journal."""
    with closing(Journal(journal_url)) as journal:
        journal.write_event(build_numbered_event(1))
    reader = postgresql.create_reader_url(journal_url) if "://" in journal_url else journal_url

    with closing(Journal(reader, create=False)) as journal:
        assert list_event_numbers(journal.select()) == [1]


def test_concurrent_writers_record_each_event_once(journal_url: str) -> None:
    """X-2: two journals that share a database, each with several threads, record every event exactly once."""
    journals = [Journal(journal_url) for _ in range(2)]

    def write_events(journal: Journal) -> None:
        for number in range(20):
            journal.write_event(build_numbered_event(number))

    writers = [threading.Thread(target=write_events, args=(journals[number % 2],)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert sorted(list_event_numbers(journals[0].select())) == list(range(20))
    for journal in journals:
        journal.close()


def test_attempts_are_returned_once_with_recorded_event(journal: Journal) -> None:
    """X-6: attempts are returned once with their event, whichever is recorded first."""
    first, second = build_numbered_event(1), build_numbered_event(2)
    reply = {"id": "r", "type": events.NODE_TAINTED, "data": {"deep": [1]}}
    failure = build_attempt(first, 503, error="no answer")
    success = Attempt(
        first.get_source(), first.get_id(), "taint", TEST_START + timedelta(seconds=1), 0.1, 200, (reply,)
    )
    journal.write_attempts([success, failure])
    journal.write_event(first)
    journal.write_event(second)
    journal.write_attempts([failure])

    first_entry, second_entry = journal.select()

    assert first_entry.attempts == (failure, success)
    assert second_entry.attempts == ()


def test_event_with_successful_retry_is_not_selected_as_failed(journal: Journal) -> None:
    """X-6: an event counts as failed if the last attempt of any function failed, and not if a retry succeeded."""
    repaired, still_failed, failed_again = map(build_numbered_event, (1, 2, 3))
    success = replace(build_attempt(repaired), at=TEST_START + timedelta(seconds=1))
    for event in (repaired, still_failed, failed_again):
        journal.write_event(event)
        journal.write_attempts([build_attempt(event, 503, error="no answer")])
    later_failure = replace(build_attempt(failed_again, 503), at=TEST_START + timedelta(seconds=2))
    other_success = replace(success, event=still_failed.get_id(), function="other")
    early_success = replace(success, event=failed_again.get_id())
    journal.write_attempts([success, other_success, early_success, later_failure])

    assert list_event_numbers(journal.select(Query(failed=True))) == [2, 3]
    assert len(journal.select()[0].attempts) == 2


def test_event_is_not_selected_as_failed_if_slow_attempt_succeeded_after_rejected_ones(journal: Journal) -> None:
    """X-6: while a slow attempt runs, the function rejects further deliveries of the event; its success counts."""
    event = build_numbered_event(1)
    slow_success = replace(build_attempt(event), seconds=60.0)
    rejections = [replace(build_attempt(event, 503), at=TEST_START + timedelta(seconds=second)) for second in (2, 4)]
    journal.write_event(event)
    journal.write_attempts([slow_success, *rejections])

    assert journal.select(Query(failed=True)) == []
    (entry,) = journal.select()
    assert list_unresolved_failures(entry.attempts) == []
    assert list_unresolved_failures([replace(slow_success, seconds=3.0), *rejections]) == [rejections[1]]


@pytest.mark.parametrize("extreme_time", [datetime.min, datetime.max])
def test_row_with_out_of_range_time_does_not_hide_other_rows(journal: Journal, extreme_time: datetime) -> None:
    """X-1: a row from an older release with a time beyond Python's range does not hide other rows."""
    event = build_numbered_event(1)
    journal.write_event(event, extreme_time.replace(tzinfo=timezone.utc))
    journal.write_attempts([replace(build_attempt(event), at=extreme_time.replace(tzinfo=timezone.utc))])

    (entry,) = journal.select()
    assert 1 < entry.arrived.year < 10000
    assert entry.attempts[0].at.astimezone(timezone(timedelta(hours=-12)))


def test_entry_has_cause_maintenance_node_and_dead_letter(journal: Journal) -> None:
    """X-6: an entry's cause, maintenance, node and dead letter are read from product and API server events."""
    metadata = {"name": "nm", "uid": "uid-1"}
    created = build_api_event("NodeMaintenance", {"metadata": metadata, "spec": {"nodeName": "node-1"}})
    begun_event = build_event(events.MAINTENANCE_BEGUN, "begin", MAINTENANCE, "node-1", cause=created)
    node = build_api_event("Node", {"metadata": {"name": "node-2", "uid": "n"}})
    failure = {"knativeerrordest": "http://taint/", "knativeerrorcode": "503", "knativeerrordata": "bm8K"}
    dead = CloudEvent({**begun_event.get_attributes(), **failure}, begun_event.get_data())
    for event in (created, begun_event, node, dead):
        journal.write_event(event)

    entries = journal.select()

    assert [entry.maintenance for entry in entries] == ["uid-1", "uid-1", "", "uid-1"]
    assert [entry.node for entry in entries] == ["node-1", "node-1", "node-2", "node-1"]
    assert [entry.cause for entry in entries] == ["", "nm", "", "nm"]
    assert [entry.dead_letter for entry in entries] == [None, None, None, DeadLetter("http://taint/", 503, "no\n")]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (Query(), [1, 2, 3, 4, 5, 6]),
        (Query(node="node-1"), [1, 2, 3, 4, 5]),
        (Query(node="node-2"), [6]),
        (Query(node="nowhere"), []),
        (Query(maintenance="uid-1"), [1, 2, 3]),
        (Query(maintenance="other"), [4, 5]),
        (Query(types=(events.NODE_TAINTED, events.MAINTENANCE_STEP_FAILED)), [2, 4]),
        (Query(types=(events.NODE_TAINTED,), maintenance="uid-2"), []),
        (Query(failed=True), [3, 4, 5]),
        (Query(failed=True, maintenance="nm"), [3]),
        (Query(dead_letters_only=True), [5]),
        (Query(since=TEST_START - timedelta(hours=1)), [1, 2, 3, 4, 5, 6]),
        (Query(since=TEST_START + timedelta(hours=1)), []),
        (Query(until=TEST_START), []),
        (Query(limit=2), [1, 2]),
        (Query(limit=2, keep_newest=True), [5, 6]),
        (Query(node="node-1", limit=2, keep_newest=True), [4, 5]),
    ],
)
def test_query_filters_entries(journal: Journal, query: Query, expected: list[int]) -> None:
    """X-6: a query filters by node, maintenance (uid or name), type, time and failure; all conditions must match."""
    failed = build_numbered_event(3)
    _write_sample_events(journal, failed)
    journal.write_attempts(
        [
            build_attempt(failed, 500, error="boom"),
            build_attempt(build_numbered_event(1)),
            build_attempt(build_numbered_event(2), 500, replay="r1"),
        ]
    )

    assert list_event_numbers(journal.select(query)) == expected


@pytest.mark.parametrize(("replay", "status"), [("redrive 1", 204), ("redrive 1", 503), ("r1", 204), ("", 204)])
@pytest.mark.parametrize("path", ["taint", "x/taint/", "retaint", "cordon", ""])
def test_redriven_dead_letter_is_not_selected_as_awaiting_redrive(
    journal: Journal, path: str, replay: str, status: int
) -> None:
    """X-6: the query for dead letters that await a redrive returns exactly those for which `awaits_redrive` is true."""
    dead = build_numbered_event(1)
    journal.write_event(add_dead_letter_extensions(dead, DeadLetter(f"http://in/{path}", 503, "away")))
    journal.write_attempts([build_attempt(dead, status, replay=replay)])

    (dead_letter,) = journal.select(Query(dead_letters_only=True))

    assert bool(journal.select(Query(dead_letters_only=True, awaiting_redrive=True))) is awaits_redrive(dead_letter)


@pytest.mark.parametrize(
    ("replay", "status", "is_failed"),
    [
        ("redrive 1", 204, False),
        ("redrive discard 1", 0, False),
        ("redrive 1", 503, True),
        ("r1", 204, True),
    ],
)
def test_redriven_or_discarded_event_is_not_selected_as_failed(
    journal: Journal, replay: str, status: int, is_failed: bool
) -> None:
    """X-6: after a redrive or a discard, neither the dead letter nor its event counts as failed."""
    event = build_numbered_event(1)
    dead = add_dead_letter_extensions(event, DeadLetter("http://in/taint", 503, "away"))
    journal.write_event(event)
    journal.write_event(dead)
    handled = replace(build_attempt(event, status, replay=replay), at=TEST_START + timedelta(minutes=1))
    journal.write_attempts([build_attempt(event, 503, error="away"), handled])

    assert list_event_numbers(journal.select(Query(failed=True))) == ([1, 1] if is_failed else [])


def test_query_selects_events_by_seq_or_id(journal: Journal) -> None:
    """X-6: A query can select the events after or before a sequence number, or events with given ids."""
    _write_sample_events(journal, build_numbered_event(3))
    entries = journal.select()
    expected = tuple(entry.event.get_id() for entry in entries[1:3])

    assert list_event_numbers(journal.select(Query(after_seq=entries[3].seq))) == [5, 6]
    before_query = Query(before_seq=entries[3].seq, limit=2, keep_newest=True)
    assert list_event_numbers(journal.select(before_query)) == [2, 3]
    assert list_event_numbers(journal.select(Query(ids=expected))) == [2, 3]


def test_version_of_query_result_changes_with_its_entries_and_attempts(journal: Journal) -> None:
    """Check that a new event or attempt changes the version of a query that selects it, but not of other queries."""
    query, event = Query(maintenance=MAINTENANCE.uid, limit=2, keep_newest=True), build_numbered_event(1)
    versions = [journal.compute_version(query)]
    journal.write_event(event)
    versions.append(journal.compute_version(query))
    journal.write_attempts([build_attempt(event)])
    versions.append(journal.compute_version(query))

    other = build_numbered_event(2, OTHER_MAINTENANCE)
    journal.write_event(other)
    journal.write_attempts([build_attempt(other)])

    assert len(set(versions)) == 3
    assert journal.compute_version(query) == versions[-1]


def _write_sample_events(journal: Journal, third_event: BaseCloudEvent) -> None:
    dead = build_numbered_event(5, OTHER_MAINTENANCE, knativeerrordest="http://x/", knativeerrorcode="400")
    other_event = build_event(
        events.PODS_GONE, "podsource", ObjectReference("", "third", "uid-3"), "node-2", data={"number": 6}
    )
    journal.write_event(build_numbered_event(1))
    journal.write_event(build_numbered_event(2, event_type=events.NODE_TAINTED))
    journal.write_event(third_event)
    journal.write_event(build_numbered_event(4, OTHER_MAINTENANCE, events.MAINTENANCE_STEP_FAILED))
    journal.write_event(dead)
    journal.write_event(other_event)


def test_error_for_invalid_file_names_file(tmp_path: Path) -> None:
    """X-6: an invalid path, or a file that is not a journal, raises an error that names the file."""
    (tmp_path / "text").write_text("This text is not a SQLite database. " * 24)

    with pytest.raises(JournalError, match="no-such-folder"):
        Journal(tmp_path / "no-such-folder" / "journal.db")
    with pytest.raises(JournalError, match="text"):
        Journal(tmp_path / "text")


@pytest.mark.parametrize(
    "journal_url", ["mysql://u:secret@h/d", "http://example.com/", "nonsense://", "postgresql://u:secret@h:5432x/d"]
)
def test_error_for_unsupported_url_lists_supported_urls(journal_url: str) -> None:
    """X-6: an unsupported URL raises an error that lists the supported forms and does not reveal the password."""
    with pytest.raises(JournalError, match="use a path, sqlite:///PATH or postgresql://") as error:
        Journal(journal_url)
    assert "secret" not in str(error.value)


def test_failed_write_raises_journal_error(tmp_path: Path) -> None:
    """X-6: a failed write raises `JournalError`, to which `record` responds with 503."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            other.execute("DROP TABLE events")

        with pytest.raises(JournalError, match="no such table"):
            journal.write_event(build_numbered_event(1))


@pytest.mark.parametrize("name", ["journal.db", "journal.db*"])
def test_deleted_database_file_is_created_again(tmp_path: Path, name: str) -> None:
    """X-6: a deleted database file is created again; otherwise, SQLite would continue to write to the deleted file."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(build_numbered_event(1))
        for file in tmp_path.glob(name):
            file.unlink()

        assert_second_write_succeeds(journal)
        assert read_event_numbers(tmp_path / "journal.db") == [2]


def test_events_are_written_to_replaced_database_file(tmp_path: Path) -> None:
    """X-6: if the database file is replaced, for example from a backup, the next events are written to the new file."""
    with closing(Journal(tmp_path / "journal.db")) as journal, closing(Journal(tmp_path / "backup.db")) as backup:
        journal.write_event(build_numbered_event(1))
        backup.write_event(build_numbered_event(0))
        backup.close()
        for file in tmp_path.glob("journal.db*"):
            file.unlink()
        (tmp_path / "backup.db").rename(tmp_path / "journal.db")

        assert_second_write_succeeds(journal)
        assert read_event_numbers(tmp_path / "journal.db") == [0, 2]


@pytest.mark.parametrize("create", [True, False])
def test_reader_reads_replaced_database_file(tmp_path: Path, create: bool) -> None:
    """X-6: a long-running reader, such as a console, reads the file that currently exists at its path."""
    file = tmp_path / "journal.db"
    with closing(Journal(file)) as first:
        first.write_event(build_numbered_event(1))
    with closing(Journal(file, create=create)) as reader:
        assert list_event_numbers(reader.select()) == [1]
        for database_file in tmp_path.glob("journal.db*"):
            database_file.unlink()
        with closing(Journal(file)) as second:
            second.write_event(build_numbered_event(2))

            assert list_event_numbers(reader.select()) == [2]


def test_reader_reports_missing_file_until_writer_creates_file(tmp_path: Path) -> None:
    """X-6: a reader does not create a missing file, and reads the file once `record` has created it.

    While the file does not exist, the reader's error reports this.
    """
    file = tmp_path / "a journal #1 of 50%.db"
    with pytest.raises(JournalError, match="file does not exist yet: the function record creates it"):
        Journal(file, create=False)
    with closing(Journal(file, create=False, defer_not_ready=True)) as reader:
        for number in range(2):
            for access in (reader.select, lambda: reader.write_event(build_numbered_event(9))):
                with pytest.raises(JournalError, match="file does not exist yet"):
                    access()
            assert list(tmp_path.iterdir()) == []

            with closing(Journal(file)) as journal:
                journal.write_event(build_numbered_event(number))
            assert list_event_numbers(reader.select()) == [number]
            reader.write_attempts([build_attempt(build_numbered_event(number))])
            assert reader.select()[0].attempts
            for database_file in tmp_path.iterdir():
                database_file.unlink()


def test_writes_fail_until_missing_directory_is_restored(tmp_path: Path) -> None:
    """X-6: writes fail while the directory is missing, and succeed once it is restored."""
    folder = tmp_path / "volume"
    folder.mkdir()
    with closing(Journal(folder / "journal.db")) as journal:
        journal.write_event(build_numbered_event(1))
        folder.rename(tmp_path / "elsewhere")
        for _ in range(2):
            with pytest.raises(JournalError, match="unable to open"):
                journal.write_event(build_numbered_event(2))

        (tmp_path / "elsewhere").rename(folder)
        assert journal.write_event(build_numbered_event(2))
        assert read_event_numbers(folder / "journal.db") == [1, 2]


def assert_second_write_succeeds(journal: Journal) -> None:
    """Check that the first write to a removed or replaced file fails, and that the second write succeeds."""
    with pytest.raises(JournalError, match="removed or replaced"):
        journal.write_event(build_numbered_event(2))
    assert journal.write_event(build_numbered_event(2))


def read_event_numbers(path: Path) -> list[int]:
    """Open the journal as another process would, and return the numbers of its events."""
    with closing(Journal(path, create=False)) as journal:
        return list_event_numbers(journal.select())


def measure_median_write_seconds(journal: Journal, round_number: int, batches: int = 10, count: int = 100) -> float:
    """Return the lowest of several batches' median times to record an event.

    In PostgreSQL, each event waits for the disk, which other tests may use at the same time; the lowest median excludes
    their effect.
    """
    starts = range(round_number * batches * count, (round_number + 1) * batches * count, count)
    return min(_measure_median_seconds(journal, range(start, start + count)) for start in starts)


def _measure_median_seconds(journal: Journal, event_numbers: range) -> float:
    seconds = []
    for event in [build_numbered_event(number) for number in event_numbers]:
        started = time.perf_counter()
        journal.write_event(event)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


@pytest.mark.slow
def test_recording_event_takes_less_than_one_millisecond(journal: Journal) -> None:
    """Check that the median time to record an event, including the write to disk, is less than 1 ms."""

    def is_fast(round_number: int) -> bool:
        median = measure_median_write_seconds(journal, round_number)
        print(f"median time to record an event: {median * 1000:.2f} ms")
        return is_below_scaled_limit(median, 0.001)

    assert any(map(is_fast, range(3)))


def test_sqlite_syncs_each_transaction_to_disk(tmp_path: Path) -> None:
    """X-6: SQLite waits for the disk before it completes a transaction (`synchronous` is 2, that is, FULL)."""
    with closing(Journal(tmp_path / "journal.db")) as journal, journal._database.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_unstorable_data_raises_bad_event(journal_url: str) -> None:
    """X-6: data that the database cannot store raises `BadEvent`, which is not retried; later writes succeed."""
    with closing(Journal(journal_url)) as journal:
        attempt = Attempt("/s", "1", "cordon", datetime.now(timezone.utc), 0.1, 10**30)
        with pytest.raises(BadEvent):
            journal.write_attempts([attempt])
        journal.write_attempts([replace(attempt, status=200)])


def test_query_accepts_out_of_range_seq(journal: Journal) -> None:
    """X-6: A query accepts a sequence number that exceeds the database's range, because it may come from a URL."""
    journal.write_event(build_numbered_event(1))

    assert journal.select(Query(after_seq=10**40)) == []
    assert list_event_numbers(journal.select(Query(before_seq=10**40))) == [1]


def test_two_processes_do_not_write_concurrently(postgresql: PostgreSQL) -> None:
    """Check that two processes do not write concurrently, so that a reader that follows `seq` misses no event."""
    url = postgresql.create_database()
    waiting_query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    next_number = text("SELECT nextval(pg_get_serial_sequence('events', 'seq'))")
    with closing(Journal(url)) as first, closing(Journal(url)) as second, ThreadPoolExecutor(1) as pool:
        with psycopg.connect(url, autocommit=True) as watcher, first._database.begin() as connection:
            write = pool.submit(second.write_event, build_numbered_event(1))
            assert wait_until(lambda: watcher.execute(waiting_query).fetchone() == (1,))
            number = connection.execute(next_number).scalar_one()
        assert write.result(10)
        assert [entry.seq > number for entry in second.select()] == [True]


def test_only_one_of_two_processes_prunes(postgresql: PostgreSQL) -> None:
    """Check that only one of two processes prunes; otherwise, both could measure and delete the same excess."""
    url = postgresql.create_database()
    with closing(Journal(url)) as first, closing(Journal(url)) as second:
        first.write_events([(build_numbered_event(number), datetime.now(timezone.utc)) for number in range(10)])
        with first._database.try_lock(PRUNE_LOCK) as is_locked:
            assert (is_locked, second.prune(max_bytes=1)) == (True, 0)
        assert len(second.select()) == 10
        assert second.prune(max_bytes=1) == 10


def build_long_event(number: int) -> CloudEvent:
    return CloudEvent(build_numbered_event(number).get_attributes(), {"number": number, "text": "x" * 5000})


@pytest.mark.parametrize("query", [Query(), Query(limit=3, keep_newest=True), Query(dead_letters_only=True)], ids=str)
@pytest.mark.parametrize("max_bytes", [1, 12_000, 1_000_000])
def test_iter_entries_returns_same_entries_as_select(journal: Journal, query: Query, max_bytes: int) -> None:
    """X-2: `iter_entries` yields the same events and attempts in the same order as `select`, for any memory limit."""
    for number in (3, 1, 2, 0):
        journal.write_event(build_long_event(number), TEST_START + timedelta(seconds=number))
    journal.write_event(
        add_dead_letter_extensions(build_numbered_event(4), DeadLetter("http://evict/", 503, "")), TEST_START
    )
    journal.write_attempts([build_attempt(build_numbered_event(1)), build_attempt(build_numbered_event(4), 503)])

    entries = list(journal.iter_entries(query, max_bytes))

    assert [(entry.seq, entry.arrived, entry.attempts) for entry in entries] == [
        (entry.seq, entry.arrived, entry.attempts) for entry in journal.select(query)
    ]
    assert list_event_numbers(entries) == list_event_numbers(journal.select(query))


def test_attempts_count_toward_memory_limit(journal_url: str) -> None:
    """X-6: attempts count toward the memory limit, because any client can cause many attempts with long errors."""
    query_sizes = []

    class CountingJournal(Journal):
        def select(self, query: Query | None = None) -> list[Entry]:
            query_sizes.append(len(query.seqs) if query else 0)
            return super().select(query)

    with closing(CountingJournal(journal_url)) as journal:
        for number in range(3):
            journal.write_event(build_numbered_event(number))
            journal.write_attempts([build_attempt(build_numbered_event(number), 503, error="x" * 5000)])

        assert list_event_numbers(list(journal.iter_entries(Query(), capacity=14_000))) == [0, 1, 2]

    assert query_sizes == [2, 1]


def test_events_with_same_id_and_different_source_have_separate_attempts(journal: Journal) -> None:
    """X-2: events with the same id but different sources are different events with separate attempts."""
    first, second = (CloudEvent({"id": "1", "source": source, "type": "x"}, None) for source in ("/one", "/other"))
    journal.write_event(first)
    journal.write_attempts([build_attempt(first), build_attempt(second)])
    assert [entry.attempts for entry in journal.select()] == [(build_attempt(first),)]

    journal.write_event(second)
    assert [entry.attempts for entry in journal.select()] == [(build_attempt(first),), (build_attempt(second),)]


def test_entry_read_without_data_has_same_kind_node_object_and_cause(journal: Journal) -> None:
    """Check that an entry that is read without its event's data has the same kind, node, object and cause."""
    maintenance = {"metadata": {"name": "nm", "uid": "uid-1"}, "spec": {"nodeName": "node-1", "reason": "x" * 5000}}
    for kind, resource in (
        ("NodeMaintenance", maintenance),
        ("Node", {"metadata": {"name": "node-2", "uid": "uid-2"}}),
    ):
        journal.write_event(build_api_event(kind, resource))
    journal.write_event(build_api_event("MutexRunConfig", {"metadata": {"name": "run", "uid": "uid-3"}}))
    journal.write_event(CloudEvent({"id": "1", "source": "/x", "type": "x", "kind": "Node"}, {"name": "node-3"}))
    journal.write_event(build_numbered_event(1))
    journal.write_attempts(
        [build_attempt(build_numbered_event(1), 200, replies=({"id": "r", "type": "x", "data": "x" * 5000},))]
    )
    entries = journal.select()

    stripped = [strip_data(entry) for entry in entries]

    assert [get_compared_fields(entry) for entry in stripped] == [get_compared_fields(entry) for entry in entries]
    assert all(len(str(entry.event.get_data())) < 500 for entry in stripped)
    assert stripped[-1].attempts == (build_attempt(build_numbered_event(1), 200, replies=({"id": "r", "type": "x"},)),)


def get_compared_fields(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.node, get_object_identity(entry.event), entry.cause, entry.event.get_attributes()


def test_list_contains_data_of_newest_events_up_to_memory_limit(journal: Journal) -> None:
    """X-6: a list includes only the newest events' data, up to a memory limit; any client may post large events."""
    journal.write_events((build_long_event(number), TEST_START + timedelta(seconds=number)) for number in range(4))
    journal.write_event(build_numbered_event(4), TEST_START + timedelta(seconds=4))
    entries = journal.select()

    listed = journal.list_entries(Query(), capacity=12_000)

    assert [entry.event.get_data() is None for entry in listed] == [True, True, False, False, False]
    assert list_event_numbers(listed) == [2, 3, 4]
    assert [entry.event.get_attributes() for entry in listed] == [entry.event.get_attributes() for entry in entries]
    assert [(entry.seq, entry.arrived) for entry in listed] == [(entry.seq, entry.arrived) for entry in entries]


def test_list_omits_long_attributes_of_event(journal: Journal) -> None:
    """Check that a list contains only the id, source and type of an event with long attributes."""
    journal.write_event(CloudEvent({"id": "1", "source": "/x", "type": "x", "long": "x" * 5000}, {}))

    (entry,) = journal.list_entries(Query(), capacity=0)

    assert (entry.event.get_id(), entry.event.get_source(), entry.event.get_type()) == ("1", "/x", "x")
