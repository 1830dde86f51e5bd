"""Tests of the journal on real databases."""

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
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.events import Reference, event
from eventing.journal.database import PRUNING
from eventing.journal.entries import maintenance_of
from eventing.journal.batching import bare
from eventing.journal.store import Attempt, Entry, Journal, JournalError, Query
from eventing.replay.redrive import is_open
from eventing.http_binding import BadEvent
from tests.localcluster.commands import soon
from tests.machine_speed import is_below
from tests.postgresql import PostgreSQL

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
OTHER = Reference("nodemaintenance.medik8s.io/v1beta1", "other", "uid-2")
NOW = datetime.now(timezone.utc)


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    with closing(Journal(journal_url)) as opened:
        yield opened


def numbered(number: int, reference: Reference = MINE, kind: str = events.NODE_CORDONED, **more: Any) -> CloudEvent:
    return event(kind, "cordon", reference, "node-1", seed=str(number), data={"number": number}, **more)


def numbers(entries: list[Entry]) -> list[int]:
    return [data["number"] for entry in entries if isinstance(data := entry.event.get_data(), dict)]


def attempt(of: BaseCloudEvent, status: int = 204, **more: Any) -> Attempt:
    return Attempt(of.get_source(), of.get_id(), "taint", NOW, 0.5, status, **more)


def api_event(kind: str, item: dict[str, Any]) -> CloudEvent:
    attributes = {"id": item["metadata"]["name"], "source": "/apis", "type": events.RESOURCE_ADDED, "kind": kind}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, item)


def test_each_event_is_kept_once_in_order(journal: Journal) -> None:
    """X-2: Source and id identify a duplicate, and entries are in the order of arrival."""
    kept = [journal.write(numbered(number)) for number in (2, 1, 2, 3, 1)]

    entries = journal.select()

    assert kept == [True, True, False, True, False]
    assert numbers(entries) == [2, 1, 3]
    assert [entry.seq for entry in entries] == sorted(entry.seq for entry in entries)
    assert all(NOW <= entry.arrived <= datetime.now(timezone.utc) for entry in entries)


def test_the_order_is_that_of_arrival(journal: Journal) -> None:
    """X-2: Entries are ordered by their time of arrival, even if concurrent requests are written in another order."""
    first, second = NOW, NOW + timedelta(seconds=1)
    journal.write(numbered(2), second)
    journal.write(numbered(1), first)

    assert [entry.event.get_id() for entry in journal.select()] == [numbered(1).get_id(), numbered(2).get_id()]


@pytest.mark.parametrize(
    "data", [{"some": "ünïcode\x00 and NUL"}, ["a list"], "text that is no JSON", b"\xff\x00", None], ids=str
)
def test_an_event_comes_back_whole(journal: Journal, data: Any) -> None:
    """X-2: Attributes, extensions and data are returned unchanged, so that the event can be posted again."""
    attributes = {"id": "1", "source": "/x", "type": "x", "partitionkey": "node-1", "time": NOW}
    if not isinstance(data, (str, bytes)):
        attributes["datacontenttype"] = "application/json"
    else:
        attributes["datacontenttype"] = "text/plain"
    sent = CloudEvent(attributes, data)
    journal.write(sent)

    (back,) = journal.select()

    assert back.event.get_attributes() == sent.get_attributes()
    assert back.event.get_data() == data


def test_an_event_of_the_largest_size_comes_back(journal: Journal) -> None:
    """X-2: An event with 2 MiB of data, the maximum of an ingress, is stored and read, although its JSON is larger."""
    data = b"\xff" * (2 * 1024 * 1024)
    journal.write(CloudEvent({"id": "1", "source": "/x", "type": "x", "datacontenttype": "image/png"}, data))

    assert journal.select()[0].event.get_data() == data


def test_it_survives_its_process(journal_url: str) -> None:
    """X-2: Events survive a restart, and are still recognized as duplicates."""
    with closing(Journal(journal_url)) as first:
        first.write(numbered(1))

    with closing(Journal(journal_url)) as second:
        assert second.write(numbered(1)) is False
        assert len(second.select()) == 1


def test_it_is_read_without_the_right_to_make_it(journal_url: str, postgresql: PostgreSQL) -> None:
    """Check that a database user with read permission only can read a journal in PostgreSQL."""
    with closing(Journal(journal_url)) as journal:
        journal.write(numbered(1))
    reader = postgresql.reader_of(journal_url) if "://" in journal_url else journal_url

    with closing(Journal(reader, create=False)) as journal:
        assert numbers(journal.select()) == [1]


def test_many_writers_lose_nothing(journal_url: str) -> None:
    """X-2: Two journals with several threads each on one database record every event exactly once."""
    journals = [Journal(journal_url) for _ in range(2)]

    def write(journal: Journal) -> None:
        for number in range(20):
            journal.write(numbered(number))

    writers = [threading.Thread(target=write, args=(journals[number % 2],)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert sorted(numbers(journals[0].select())) == list(range(20))
    for journal in journals:
        journal.close()


def test_attempts_are_told_with_their_event_each_once(journal: Journal) -> None:
    """X-6: Attempts are returned with their event in any order of recording, and a duplicate attempt is stored once."""
    first, second = numbered(1), numbered(2)
    reply = {"id": "r", "type": events.NODE_TAINTED, "data": {"deep": [1]}}
    bad = attempt(first, 503, error="no answer")
    good = Attempt(first.get_source(), first.get_id(), "taint", NOW + timedelta(seconds=1), 0.1, 200, (reply,))
    journal.write_attempts([good, bad])
    journal.write(first)
    journal.write(second)
    journal.write_attempts([bad])

    one, two = journal.select()

    assert one.attempts == (bad, good)
    assert two.attempts == ()


@pytest.mark.parametrize("end", [datetime.min, datetime.max])
def test_a_row_beyond_all_time_hides_no_other(journal: Journal, end: datetime) -> None:
    """X-1: A row with a time beyond Python's range, as from an older release, does not hide other rows."""
    one = numbered(1)
    journal.write(one, end.replace(tzinfo=timezone.utc))
    journal.write_attempts([replace(attempt(one), at=end.replace(tzinfo=timezone.utc))])

    (entry,) = journal.select()
    assert 1 < entry.arrived.year < 10000
    assert entry.attempts[0].at.astimezone(timezone(timedelta(hours=-12)))


def test_an_entry_knows_cause_maintenance_node_and_dead_letter(journal: Journal) -> None:
    """X-6: Cause, maintenance, node and dead letter are read from our events and from the API server's events."""
    metadata = {"name": "nm", "uid": "uid-1"}
    came = api_event("NodeMaintenance", {"metadata": metadata, "spec": {"nodeName": "node-1"}})
    follows = event(events.MAINTENANCE_BEGUN, "begin", MINE, "node-1", cause=came)
    node = api_event("Node", {"metadata": {"name": "node-2", "uid": "n"}})
    failure = {"knativeerrordest": "http://taint/", "knativeerrorcode": "503", "knativeerrordata": "bm8K"}
    dead = CloudEvent({**follows.get_attributes(), **failure}, follows.get_data())
    for one in (came, follows, node, dead):
        journal.write(one)

    entries = journal.select()

    assert [entry.maintenance for entry in entries] == ["uid-1", "uid-1", "", "uid-1"]
    assert [entry.node for entry in entries] == ["node-1", "node-1", "node-2", "node-1"]
    assert [entry.cause for entry in entries] == ["", "nm", "", "nm"]
    assert [entry.dead_letter for entry in entries] == [None, None, None, DeadLetter("http://taint/", 503, "no\n")]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query(), [1, 2, 3, 4, 5, 6]),
        (Query(node="node-1"), [1, 2, 3, 4, 5]),
        (Query(node="node-2"), [6]),
        (Query(node="nowhere"), []),
        (Query(maintenance="uid-1"), [1, 2, 3]),
        (Query(maintenance="other"), [4, 5]),
        (Query(types=(events.NODE_TAINTED, events.MAINTENANCE_FAILED)), [2, 4]),
        (Query(types=(events.NODE_TAINTED,), maintenance="uid-2"), []),
        (Query(failed=True), [3, 4, 5]),
        (Query(failed=True, maintenance="nm"), [3]),
        (Query(dead=True), [5]),
        (Query(since=NOW - timedelta(hours=1)), [1, 2, 3, 4, 5, 6]),
        (Query(since=NOW + timedelta(hours=1)), []),
        (Query(until=NOW), []),
        (Query(limit=2), [1, 2]),
        (Query(limit=2, newest=True), [5, 6]),
        (Query(node="node-1", limit=2, newest=True), [4, 5]),
    ],
)
def test_a_query_selects(journal: Journal, query: Query, found: list[int]) -> None:
    """X-6: A query filters by node, maintenance (uid or name), type, time and failure, and combines all conditions."""
    ill = numbered(3)
    _fill(journal, ill)
    journal.write_attempts(
        [attempt(ill, 500, error="boom"), attempt(numbered(1)), attempt(numbered(2), 500, replay="r1")]
    )

    assert numbers(journal.select(query)) == found


@pytest.mark.parametrize(("replay", "status"), [("redrive 1", 204), ("redrive 1", 503), ("r1", 204), ("", 204)])
@pytest.mark.parametrize("path", ["taint", "x/taint/", "retaint", "cordon", ""])
def test_what_was_redriven_is_not_open(journal: Journal, path: str, replay: str, status: int) -> None:
    """X-6: The query for dead letters that await a redrive agrees with `is_open`."""
    dead = numbered(1)
    journal.write(as_dead_letter(dead, DeadLetter(f"http://in/{path}", 503, "away")))
    journal.write_attempts([attempt(dead, status, replay=replay)])

    (letter,) = journal.select(Query(dead=True))

    assert bool(journal.select(Query(dead=True, open=True))) is is_open(letter)


def test_a_query_goes_on_after_what_was_seen(journal: Journal) -> None:
    """X-6: A query can continue after a number, or select ids."""
    _fill(journal, numbered(3))
    entries = journal.select()
    chosen = tuple(entry.event.get_id() for entry in entries[1:3])

    assert numbers(journal.select(Query(after=entries[3].seq))) == [5, 6]
    assert numbers(journal.select(Query(ids=chosen))) == [2, 3]


def _fill(journal: Journal, third: BaseCloudEvent) -> None:
    dead = numbered(5, OTHER, knativeerrordest="http://x/", knativeerrorcode="400")
    elsewhere = event(events.PODS_GONE, "podsource", Reference("", "third", "uid-3"), "node-2", data={"number": 6})
    journal.write(numbered(1))
    journal.write(numbered(2, kind=events.NODE_TAINTED))
    journal.write(third)
    journal.write(numbered(4, OTHER, events.MAINTENANCE_FAILED))
    journal.write(dead)
    journal.write(elsewhere)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """X-6: An invalid path or a file of another format is an error that names the file."""
    (tmp_path / "text").write_text("this is no database, and long enough to be taken for one" * 20)

    with pytest.raises(JournalError, match="no-such-folder"):
        Journal(tmp_path / "no-such-folder" / "journal.db")
    with pytest.raises(JournalError, match="text"):
        Journal(tmp_path / "text")


@pytest.mark.parametrize(
    "journal_url", ["mysql://u:secret@h/d", "http://example.com/", "nonsense://", "postgresql://u:secret@h:5432x/d"]
)
def test_another_database_is_refused_with_what_is_taken(journal_url: str) -> None:
    """X-6: An unsupported URL is an error that lists the supported ones and does not reveal the password."""
    with pytest.raises(JournalError, match="take a path, sqlite:///PATH or postgresql://") as error:
        Journal(journal_url)
    assert "secret" not in str(error.value)


def test_a_broken_file_is_an_error_to_try_again(tmp_path: Path) -> None:
    """X-6: A failed write is a `JournalError`, which `record` answers with 503."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            other.execute("DROP TABLE events")

        with pytest.raises(JournalError, match="no such table"):
            journal.write(numbered(1))


@pytest.mark.parametrize("name", ["journal.db", "journal.db*"])
def test_a_file_that_is_removed_is_made_anew(tmp_path: Path, name: str) -> None:
    """X-6: A removed file is created again, because SQLite would otherwise write to the deleted file."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write(numbered(1))
        for file in tmp_path.glob(name):
            file.unlink()

        assert_is_opened_anew(journal)
        assert read(tmp_path / "journal.db") == [2]


def test_a_file_that_is_replaced_is_gone_on_with(tmp_path: Path) -> None:
    """X-6: A replaced file, for example from a backup, is used for the next events."""
    with closing(Journal(tmp_path / "journal.db")) as journal, closing(Journal(tmp_path / "backup.db")) as backup:
        journal.write(numbered(1))
        backup.write(numbered(0))
        backup.close()
        for file in tmp_path.glob("journal.db*"):
            file.unlink()
        (tmp_path / "backup.db").rename(tmp_path / "journal.db")

        assert_is_opened_anew(journal)
        assert read(tmp_path / "journal.db") == [0, 2]


@pytest.mark.parametrize("create", [True, False])
def test_who_reads_reads_of_the_file_that_is_there_now(tmp_path: Path, create: bool) -> None:
    """X-6: A reader reads the file that currently has the path, since a console runs for weeks."""
    file = tmp_path / "journal.db"
    with closing(Journal(file)) as first:
        first.write(numbered(1))
    with closing(Journal(file, create=create)) as reader:
        assert numbers(reader.select()) == [1]
        for one in tmp_path.glob("journal.db*"):
            one.unlink()
        with closing(Journal(file)) as second:
            second.write(numbered(2))

            assert numbers(reader.select()) == [2]


def test_who_only_reads_makes_no_file_and_finds_the_one_that_is_made(tmp_path: Path) -> None:
    """X-6: A reader creates no file, and reads the journal as soon as `record` has created it.

    Until then, and after a removal, the error names the missing file.
    """
    file = tmp_path / "a journal #1 of 50%.db"
    with pytest.raises(JournalError, match="no such file yet: the function record makes it"):
        Journal(file, create=False)
    with closing(Journal(file, create=False, awaited=True)) as reader:
        for number in range(2):
            for use in (reader.select, lambda: reader.write(numbered(9))):
                with pytest.raises(JournalError, match="no such file yet"):
                    use()
            assert list(tmp_path.iterdir()) == []

            with closing(Journal(file)) as journal:
                journal.write(numbered(number))
            assert numbers(reader.select()) == [number]
            reader.write_attempts([attempt(numbered(number))])
            assert reader.select()[0].attempts
            for one in tmp_path.iterdir():
                one.unlink()


def test_a_folder_that_is_away_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    """X-6: While the directory is missing, writes fail, and afterwards they succeed."""
    folder = tmp_path / "volume"
    folder.mkdir()
    with closing(Journal(folder / "journal.db")) as journal:
        journal.write(numbered(1))
        folder.rename(tmp_path / "elsewhere")
        for _ in range(2):
            with pytest.raises(JournalError, match="unable to open"):
                journal.write(numbered(2))

        (tmp_path / "elsewhere").rename(folder)
        assert journal.write(numbered(2))
        assert read(folder / "journal.db") == [1, 2]


def assert_is_opened_anew(journal: Journal) -> None:
    """Check that a write after a removal fails once, so that the broker retries, and then succeeds."""
    with pytest.raises(JournalError, match="removed or replaced"):
        journal.write(numbered(2))
    assert journal.write(numbered(2))


def read(path: Path) -> list[int]:
    """Return the numbers of the events that another process would read."""
    with closing(Journal(path, create=False)) as journal:
        return numbers(journal.select())


def median_write(journal: Journal, turn: int, batches: int = 10, count: int = 100) -> float:
    """Return the seconds that recording one event takes on a quiet machine: the lowest median of several batches.

    In PostgreSQL each event waits for the disk. Other tests may keep the disk busy, which is not the journal's time.
    """
    starts = range(turn * batches * count, (turn + 1) * batches * count, count)
    return min(_median_of(journal, range(start, start + count)) for start in starts)


def _median_of(journal: Journal, wanted: range) -> float:
    took = []
    for one in [numbered(number) for number in wanted]:
        started = time.perf_counter()
        journal.write(one)
        took.append(time.perf_counter() - started)
    return statistics.median(took)


@pytest.mark.slow
def test_recording_takes_less_than_a_millisecond(journal: Journal) -> None:
    """Check that recording one event takes less than 1 ms at the median, including the write to disk."""

    def is_quick(turn: int) -> bool:
        median = median_write(journal, turn)
        print(f"an event recorded at the median in {median * 1000:.2f} ms")
        return is_below(median, 0.001)

    assert any(map(is_quick, range(3)))


def test_a_power_cut_takes_nothing_that_was_recorded(tmp_path: Path) -> None:
    """X-6: SQLite waits for the disk before a transaction ends; the value 2 is FULL."""
    with closing(Journal(tmp_path / "journal.db")) as journal, journal._database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_what_the_database_can_never_hold_is_no_fault_of_its(journal_url: str) -> None:
    """X-6: Data that the database cannot store is a `BadEvent`, which brokers do not retry; later writes succeed."""
    with closing(Journal(journal_url)) as journal:
        made = Attempt("/s", "1", "cordon", datetime.now(timezone.utc), 0.1, 10**30)
        with pytest.raises(BadEvent):
            journal.write_attempts([made])
        journal.write_attempts([replace(made, status=200)])


def test_beyond_the_last_number_there_is_nothing(journal: Journal) -> None:
    """X-6: A query after a number beyond the database's range returns nothing, as such a number may be in a URL."""
    journal.write(numbered(1))

    assert journal.select(Query(after=10**40)) == []


def test_two_processes_write_in_turn(postgresql: PostgreSQL) -> None:
    """Check that two processes write in turn, so that a reader that continues after the last number misses no event."""
    url = postgresql.database()
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    next_number = text("SELECT nextval(pg_get_serial_sequence('events', 'seq'))")
    with closing(Journal(url)) as first, closing(Journal(url)) as second, ThreadPoolExecutor(1) as pool:
        with psycopg.connect(url, autocommit=True) as watcher, first._database.writing() as connection:
            later = pool.submit(second.write, numbered(1))
            assert soon(lambda: watcher.execute(waiting).fetchone() == (1,))
            taken = connection.execute(next_number).scalar_one()
        assert later.result(10)
        assert [entry.seq > taken for entry in second.select()] == [True]


def test_of_two_processes_that_prune_one_does(postgresql: PostgreSQL) -> None:
    """Check that only one of two processes prunes, since both could measure the same excess and delete it twice."""
    url = postgresql.database()
    with closing(Journal(url)) as first, closing(Journal(url)) as second:
        first.write_all([(numbered(number), datetime.now(timezone.utc)) for number in range(10)])
        with first._database.alone(PRUNING) as mine:
            assert (mine, second.prune(size=1)) == (True, 0)
        assert len(second.select()) == 10
        assert second.prune(size=1) == 10


def long_event(number: int) -> CloudEvent:
    return CloudEvent(numbered(number).get_attributes(), {"number": number, "text": "x" * 5000})


@pytest.mark.parametrize("query", [Query(), Query(limit=3, newest=True), Query(dead=True)], ids=str)
@pytest.mark.parametrize("room", [1, 12_000, 1_000_000])
def test_events_one_after_another_are_those_that_come_at_once(journal: Journal, query: Query, room: int) -> None:
    """X-2: Iteration returns the same complete events, attempts and order as a query, for any memory limit."""
    for number in (3, 1, 2, 0):
        journal.write(long_event(number), NOW + timedelta(seconds=number))
    journal.write(as_dead_letter(numbered(4), DeadLetter("http://evict/", 503, "")), NOW)
    journal.write_attempts([attempt(numbered(1)), attempt(numbered(4), 503)])

    entries = list(journal.each(query, room))

    assert [(entry.seq, entry.arrived, entry.attempts) for entry in entries] == [
        (entry.seq, entry.arrived, entry.attempts) for entry in journal.select(query)
    ]
    assert numbers(entries) == numbers(journal.select(query))


def test_attempts_take_the_room_of_events(journal_url: str) -> None:
    """X-6: Attempts count toward the memory limit, since any client of a function can cause many with long errors."""
    asked = []

    class Noted(Journal):
        def select(self, query: Query | None = None) -> list[Entry]:
            asked.append(len(query.numbers) if query else 0)
            return super().select(query)

    with closing(Noted(journal_url)) as journal:
        for number in range(3):
            journal.write(numbered(number))
            journal.write_attempts([attempt(numbered(number), 503, error="x" * 5000)])

        assert numbers(list(journal.each(Query(), room=14_000))) == [0, 1, 2]

    assert asked == [2, 1]


def test_attempts_on_another_source_s_event_of_the_same_id_are_not_its(journal: Journal) -> None:
    """X-2: Source and id together identify an event, so attempts on another source's event are separate."""
    one, other = (CloudEvent({"id": "1", "source": source, "type": "x"}, None) for source in ("/one", "/other"))
    journal.write(one)
    journal.write_attempts([attempt(one), attempt(other)])
    assert [entry.attempts for entry in journal.select()] == [(attempt(one),)]

    journal.write(other)
    assert [entry.attempts for entry in journal.select()] == [(attempt(one),), (attempt(other),)]


def test_without_its_data_an_entry_is_about_the_same(journal: Journal) -> None:
    """Check that an entry without its data still names the same object, node and cause."""
    maintenance = {"metadata": {"name": "nm", "uid": "uid-1"}, "spec": {"nodeName": "node-1", "reason": "x" * 5000}}
    for kind, item in (("NodeMaintenance", maintenance), ("Node", {"metadata": {"name": "node-2", "uid": "uid-2"}})):
        journal.write(api_event(kind, item))
    journal.write(api_event("MutexRunConfig", {"metadata": {"name": "run", "uid": "uid-3"}}))
    journal.write(CloudEvent({"id": "1", "source": "/x", "type": "x", "kind": "Node"}, {"name": "node-3"}))
    journal.write(numbered(1))
    journal.write_attempts([attempt(numbered(1), 200, replies=({"id": "r", "type": "x", "data": "x" * 5000},))])
    whole = journal.select()

    bared = [bare(entry) for entry in whole]

    assert [about(entry) for entry in bared] == [about(entry) for entry in whole]
    assert all(len(str(entry.event.get_data())) < 200 for entry in bared)
    assert bared[-1].attempts == (attempt(numbered(1), 200),)


def about(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.node, maintenance_of(entry.event), entry.cause, entry.event.get_attributes()


def test_a_list_has_data_while_there_is_room(journal: Journal) -> None:
    """X-6: A list contains data up to the memory limit, newest first, because any client may post large events."""
    journal.write_all((long_event(number), NOW + timedelta(seconds=number)) for number in range(4))
    journal.write(numbered(4), NOW + timedelta(seconds=4))
    whole = journal.select()

    listed = journal.listed(Query(), room=12_000)

    assert [entry.event.get_data() is None for entry in listed] == [True, True, False, False, False]
    assert numbers(listed) == [2, 3, 4]
    assert [entry.event.get_attributes() for entry in listed] == [entry.event.get_attributes() for entry in whole]
    assert [(entry.seq, entry.arrived) for entry in listed] == [(entry.seq, entry.arrived) for entry in whole]


def test_a_list_names_what_has_longer_attributes_than_it_reads(journal: Journal) -> None:
    """Check that an event with long attributes is listed with its id, source and type only."""
    journal.write(CloudEvent({"id": "1", "source": "/x", "type": "x", "long": "x" * 5000}, {}))

    (entry,) = journal.listed(Query(), room=0)

    assert (entry.event.get_id(), entry.event.get_source(), entry.event.get_type()) == ("1", "/x", "x")
