"""Tests of the journal's retention: limits by age and by size."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference, event
from eventing.journal.fail_fast_lock import FEW
from eventing.journal.retention import Pruner, Retention
from eventing.journal.store import Attempt, Journal, Query
from tests.receiver import PATIENCE

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    """Yield a journal with one event and one attempt on it for each of the last ten days."""
    with closing(Journal(journal_url)) as opened:
        made = [
            (event(events.PODS_GONE, "podsource", MINE, "n", seed=str(day), data={"day": day}), NOW - day * DAY)
            for day in range(10, 0, -1)
        ]
        opened.write_all(made)
        opened.write_attempts(Attempt(one.get_source(), one.get_id(), "evict", at, 0.1, 204) for one, at in made)
        yield opened


def days(journal: Journal) -> list[int]:
    """Return the days of those ten events that are left, after checking that each still has its attempt."""
    entries = journal.select(Query(types=(events.PODS_GONE,)))
    assert all(len(entry.attempts) == 1 for entry in entries)
    return [data["day"] for entry in entries if isinstance(data := entry.event.get_data(), dict)]


def test_without_limits_all_is_kept(journal: Journal) -> None:
    """X-2: Without a limit, nothing is deleted."""
    assert journal.prune() == 0
    assert len(days(journal)) == 10


def test_what_is_old_is_forgotten(journal: Journal) -> None:
    """Check that events older than the limit are deleted with their attempts, by the time of their arrival."""
    assert journal.prune(age=timedelta(days=4.5)) == 6
    assert days(journal) == [4, 3, 2, 1]
    assert journal.prune(age=timedelta(days=4.5)) == 0


def test_the_oldest_make_room(journal: Journal) -> None:
    """Check that the oldest events are deleted until the size is below the limit, and not many more."""
    whole = journal.size()

    forgotten = journal.prune(size=whole // 2)

    assert journal.size() <= whole // 2
    assert forgotten in (5, 6)
    assert days(journal) == list(range(10 - forgotten, 0, -1))


def test_a_flood_pushes_out_itself_and_not_what_we_did(journal: Journal) -> None:
    """X-6: A flood of large foreign events does not displace events of this project, which keep half of the limit."""
    ours = journal.size()
    came = flood(0, 50)
    journal.write_all(came)
    journal.write_attempts(Attempt("/flood", one.get_id(), "status", at, 0.1, 403) for one, at in came)

    forgotten = journal.prune(size=4 * ours)

    kept = journal.select(Query(types=("flood",)))
    assert forgotten == 50 - len(kept)
    assert journal.size() <= 4 * ours
    assert len(journal.select(Query(types=(events.PODS_GONE,)))) == 10
    assert [entry.event.get_id() for entry in kept] == [str(number) for number in range(50 - len(kept), 50)]


def test_the_attempts_on_a_flood_are_pushed_out_with_it(journal: Journal) -> None:
    """X-6: Attempts on foreign events are deleted with them, and the space that foreign data may use is not wasted.

    In this test, the attempts take more space than their small events.
    """
    ours = journal.size()
    came = [(stranger(number, "x"), NOW + timedelta(seconds=number)) for number in range(300)]
    journal.write_all(came)
    for function in ("guard", "evict", "status", "resync", "record"):
        journal.write_attempts(Attempt("/flood", one.get_id(), function, at, 0.1, 204) for one, at in came)

    journal.prune(size=4 * ours)

    assert 3.5 * ours < journal.size() <= 4 * ours
    assert len(journal.select(Query(types=(events.PODS_GONE,)))) == 10


def test_attempts_on_what_was_never_recorded_make_room_too(journal: Journal) -> None:
    """X-6: Attempts on unrecorded events, which clients post directly to functions, are deleted like foreign data."""
    ours = journal.size()
    journal.write_all((stranger(number, "x"), NOW - number * DAY) for number in range(5))
    journal.write_attempts(unrecorded("/past-the-broker", 5, count=300))

    journal.prune(size=4 * ours)

    assert 3.5 * ours < journal.size() <= 4 * ours
    assert days(journal) == list(range(10, 0, -1))
    assert len(journal.select(Query(types=("flood",)))) == 5


@pytest.mark.parametrize("source", [events.SOURCE + "x", events.SOURCE.upper()], ids=["alike", "in capitals"])
def test_who_takes_the_name_of_our_programs_pushes_out_none_of_theirs(journal: Journal, source: str) -> None:
    """X-6: Attempts on unrecorded events with a source like ours do not displace events of this project.

    `record` refuses such events. A function runs on them all the same, and reports its attempts.
    """
    ours = journal.size()
    journal.write_attempts(unrecorded(source, 5, count=300))

    journal.prune(size=4 * ours)

    assert 3.5 * ours < journal.size() <= 4 * ours
    assert days(journal) == list(range(10, 0, -1))


def test_a_source_that_is_ours_but_for_capitals_is_a_strangers(journal: Journal) -> None:
    """X-6: A source that differs from ours only in upper case is foreign.

    `record` accepts such events without a signature, and SQLite's LIKE would treat both sources as equal.
    """
    ours = journal.size()
    journal.write_all(
        (CloudEvent({"id": str(number), "source": events.SOURCE.upper(), "type": "flood"}, None), NOW)
        for number in range(100)
    )

    journal.prune(size=2 * ours)

    assert days(journal) == list(range(10, 0, -1))


def test_no_more_goes_than_is_needed(journal: Journal) -> None:
    """X-6: Old attempts on unrecorded events are deleted only as far as the limit requires."""
    journal.write_attempts(unrecorded("/past-the-broker", 20, count=20))
    whole = journal.size()

    assert journal.prune(size=whole - 1000) == 0
    assert journal.size() > whole - 2000


def test_old_attempts_on_what_was_never_recorded_are_forgotten(journal: Journal) -> None:
    """Check that attempts on unrecorded events are deleted by the time of the attempt."""
    before = journal.size()
    journal.write_attempts(unrecorded("/past-the-broker", 12, count=300))

    journal.prune(age=11 * DAY)

    assert journal.size() == before


def test_what_is_too_much_of_ours_makes_room_too(journal: Journal) -> None:
    """X-6: Events of this project are deleted too if they exceed their half, and the newest of both groups remain."""
    journal.write_all((stranger(number, "x"), NOW + timedelta(seconds=number)) for number in range(3))

    journal.prune(size=journal.size() // 2)

    assert len(journal.select(Query(types=("flood",)))) == 3
    assert 1 <= len(journal.select(Query(types=(events.PODS_GONE,)))) < 10


def test_what_arrives_while_it_prunes_is_left_for_the_next_time(journal_url: str, journal: Journal) -> None:
    """X-6: Events that arrive during pruning count only at the next pruning.

    Otherwise a continuing flood would make the oldest events, which are those of this project, exceed the limit.
    """

    class Flooded(Journal):
        def size(self) -> int:
            found = super().size()
            self.write_all(flood(50, 100))
            return found

    ours = journal.size()
    journal.write_all(flood(0, 50))
    with closing(Flooded(journal_url)) as flooded:
        flooded.prune(size=4 * ours)
        assert len(journal.select(Query(types=(events.PODS_GONE,)))) == 10
        assert len(journal.select(Query(types=("flood",)))) >= 50

    journal.prune(size=4 * ours)
    assert journal.size() <= 4 * ours
    assert len(journal.select(Query(types=(events.PODS_GONE,)))) == 10


def flood(first: int, end: int) -> list[tuple[CloudEvent, datetime]]:
    """Build large foreign events, one per second from now."""
    return [(stranger(number, "x" * 20_000), NOW + timedelta(seconds=number)) for number in range(first, end)]


def unrecorded(source: str, days_ago: int, count: int) -> Iterator[Attempt]:
    """Build attempts on unrecorded events, one per second, starting `days_ago` days ago."""
    began = NOW - days_ago * DAY
    return (Attempt(source, f"x{n}", "begin", began + timedelta(seconds=n), 0.1, 204) for n in range(count))


def stranger(number: int, text: str) -> CloudEvent:
    """Build an event from a source outside this project."""
    attributes = {"id": str(number), "source": "/flood", "type": "flood", "datacontenttype": "application/json"}
    return CloudEvent(attributes, {"text": text})


def test_much_at_once_is_pruned_before_the_hour_is_over(tmp_path: Path) -> None:
    """X-6: Pruning starts before the next hour once an eighth of the limit is written, so a flood fits the disk."""
    pruned = threading.Event()

    class Watched(Journal):
        def prune(self, age: timedelta | None = None, size: int | None = None) -> int:
            found = super().prune(age, size)
            if found:
                pruned.set()
            return found

    with closing(Watched(tmp_path / "journal.db")) as book:
        pruner = Pruner(book, Retention(size=40_000))
        for number in range(20):
            book.write(stranger(number, "x" * 5000))
            pruner.event_recorded()

        assert pruned.wait(10)


@pytest.mark.slow
def test_more_than_goes_at_once_is_forgotten_too(journal_url: str) -> None:
    """Check that pruning can delete more than one transaction's number of events."""
    with closing(Journal(journal_url)) as journal:
        journal.write_all(
            (event(events.PODS_GONE, "podsource", MINE, "n", seed=str(number)), NOW - DAY + timedelta(seconds=number))
            for number in range(2500)
        )

        assert journal.prune(age=timedelta(hours=1)) == 2500
        assert journal.prune(size=0) == 0
        assert journal.select(Query(limit=1)) == []


def test_limits_are_read_from_the_environment() -> None:
    """Check that the environment gives optional limits in days and in bytes with Kubernetes' units."""
    found = Retention.of({"JOURNAL_DAYS": "1.5", "JOURNAL_BYTES": "500Mi"})

    assert found == Retention(timedelta(hours=36), 500 * 2**20)
    assert Retention.of({}) == Retention(None, None)
    assert Retention.of({"JOURNAL_BYTES": "1000"}).size == 1000


@pytest.mark.parametrize("name", ["JOURNAL_DAYS", "JOURNAL_BYTES"])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e3", "nan", "5Gb", " 5", "99999999999999999999"])
def test_a_value_that_is_none_is_named_with_its_variable(name: str, value: str) -> None:
    """X-6: An invalid limit is an error that names the variable, so that no limit is ignored by mistake."""
    with pytest.raises(ValueError, match=f"{name}={value} is no number of"):
        Retention.of({name: value})


def test_the_pruner_works_beside_the_writer(journal: Journal) -> None:
    """Check that the pruner runs in a thread at the first event, and not again within the hour."""
    pruner = Pruner(journal, Retention(age=timedelta(days=4.5)))

    for _ in range(3):
        pruner.event_recorded()
    threads = [thread for thread in threading.enumerate() if thread.name == "retention"]
    for thread in threads:
        thread.join(10)

    assert len(threads) <= 1
    assert days(journal) == [4, 3, 2, 1]


def test_one_thread_prunes_and_the_next_begins_when_it_has_ended(tmp_path: Path) -> None:
    """Check that only one thread prunes at a time, and that the next can start right after it.

    Two concurrent threads could both measure the same excess and delete twice as much as necessary.
    """
    begun, goes_on = threading.Semaphore(0), threading.Event()

    class Slow(Journal):
        def prune(self, age: timedelta | None = None, size: int | None = None) -> int:
            begun.release()
            goes_on.wait(PATIENCE)
            return super().prune(age, size)

    with closing(Slow(tmp_path / "journal.db")) as book:
        pruner = Pruner(book, Retention(size=40_000))
        pruner.event_recorded()
        assert begun.acquire(timeout=PATIENCE)
        for number in range(20):
            book.write(stranger(number, "x" * 5000))
            pruner.event_recorded()
        (pruning,) = [thread for thread in threading.enumerate() if thread.name == "retention"]
        goes_on.set()
        pruning.join(PATIENCE)

        pruner.event_recorded()
        assert begun.acquire(timeout=PATIENCE)


def test_behind_a_slow_commit_it_waits_beside_a_few_who_do(journal: Journal) -> None:
    """Check that pruning waits for a slow commit even if `FEW` writers wait already.

    If the lock refused the pruner, the next attempt would only follow with the next event after an hour.
    """
    with ThreadPoolExecutor(1 + FEW) as threads:
        with journal._database.writing():
            writing = [threads.submit(journal.write, stranger(number, "x")) for number in range(FEW)]
            pruning = threads.submit(journal.prune, DAY * 4.5)
            assert wait([pruning], timeout=0.5).not_done
        assert pruning.result(PATIENCE) == 6
        assert all(each.result(PATIENCE) for each in writing)
