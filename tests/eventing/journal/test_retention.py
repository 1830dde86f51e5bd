"""How much a journal keeps."""

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
from eventing.journal.one_tries import FEW
from eventing.journal.retention import Pruner, Retention
from eventing.journal.store import Attempt, Journal, Query
from tests.receiver import PATIENCE

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    """Give a journal with an event, and a run on it, for each of the last ten days."""
    with closing(Journal(journal_url)) as opened:
        made = [
            (event(events.PODS_GONE, "podsource", MINE, "n", seed=str(day), data={"day": day}), NOW - day * DAY)
            for day in range(10, 0, -1)
        ]
        opened.write_all(made)
        opened.write_attempts(Attempt(one.get_source(), one.get_id(), "evict", at, 0.1, 204) for one, at in made)
        yield opened


def days(journal: Journal) -> list[int]:
    """Of the events that are left of the ten, each with its run."""
    entries = journal.select(Query(types=(events.PODS_GONE,)))
    assert all(len(entry.attempts) == 1 for entry in entries)
    return [data["day"] for entry in entries if isinstance(data := entry.event.get_data(), dict)]


def test_without_limits_all_is_kept(journal: Journal) -> None:
    """X-2: nothing is forgotten that nobody asked to forget."""
    assert journal.prune() == 0
    assert len(days(journal)) == 10


def test_what_is_old_is_forgotten(journal: Journal) -> None:
    """By arrival, with its runs; what comes again later is new."""
    assert journal.prune(age=timedelta(days=4.5)) == 6
    assert days(journal) == [4, 3, 2, 1]
    assert journal.prune(age=timedelta(days=4.5)) == 0


def test_the_oldest_make_room(journal: Journal) -> None:
    """At most so many bytes are left, and not much less."""
    whole = journal.size()

    forgotten = journal.prune(size=whole // 2)

    assert journal.size() <= whole // 2
    assert forgotten in (5, 6)
    assert days(journal) == list(range(10 - forgotten, 0, -1))


def test_a_flood_pushes_out_itself_and_not_what_we_did(journal: Journal) -> None:
    """X-6: large events of others, newer than all of ours: of the bytes that are kept ours have half for themselves."""
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
    """X-6: they take more than small events do; what others have is filled, and not much less than that is kept."""
    ours = journal.size()
    came = [(stranger(number, "x"), NOW + timedelta(seconds=number)) for number in range(300)]
    journal.write_all(came)
    for function in ("guard", "evict", "status", "resync", "record"):
        journal.write_attempts(Attempt("/flood", one.get_id(), function, at, 0.1, 204) for one, at in came)

    journal.prune(size=4 * ours)

    assert 3.5 * ours < journal.size() <= 4 * ours
    assert len(journal.select(Query(types=(events.PODS_GONE,)))) == 10


def test_attempts_on_what_was_never_recorded_make_room_too(journal: Journal) -> None:
    """X-6: anybody's event, posted past the broker, has attempts and no record: they go as those of others do."""
    ours = journal.size()
    journal.write_all((stranger(number, "x"), NOW - number * DAY) for number in range(5))
    journal.write_attempts(unrecorded("/past-the-broker", 5, count=300))

    journal.prune(size=4 * ours)

    assert 3.5 * ours < journal.size() <= 4 * ours
    assert days(journal) == list(range(10, 0, -1))
    assert len(journal.select(Query(types=("flood",)))) == 5


@pytest.mark.parametrize("source", [events.SOURCE + "x", events.SOURCE.upper()], ids=["alike", "in capitals"])
def test_who_takes_the_name_of_our_programs_pushes_out_none_of_theirs(journal: Journal, source: str) -> None:
    """X-6: `record` refuses such an event; the attempt on it is told by the function itself, and so it is taken."""
    ours = journal.size()
    journal.write_attempts(unrecorded(source, 5, count=300))

    journal.prune(size=4 * ours)

    assert 3.5 * ours < journal.size() <= 4 * ours
    assert days(journal) == list(range(10, 0, -1))


def test_a_source_that_is_ours_but_for_capitals_is_a_strangers(journal: Journal) -> None:
    """X-6: `record` takes anybody's word for it; SQLite's LIKE would hold the two for the same."""
    ours = journal.size()
    journal.write_all(
        (CloudEvent({"id": str(number), "source": events.SOURCE.upper(), "type": "flood"}, None), NOW)
        for number in range(100)
    )

    journal.prune(size=2 * ours)

    assert days(journal) == list(range(10, 0, -1))


def test_no_more_goes_than_is_needed(journal: Journal) -> None:
    """X-6: where attempts on what was never recorded are the oldest, some of them are enough."""
    journal.write_attempts(unrecorded("/past-the-broker", 20, count=20))
    whole = journal.size()

    assert journal.prune(size=whole - 1000) == 0
    assert journal.size() > whole - 2000


def test_old_attempts_on_what_was_never_recorded_are_forgotten(journal: Journal) -> None:
    """By the time at which they began."""
    before = journal.size()
    journal.write_attempts(unrecorded("/past-the-broker", 12, count=300))

    journal.prune(age=11 * DAY)

    assert journal.size() == before


def test_what_is_too_much_of_ours_makes_room_too(journal: Journal) -> None:
    """X-6: half is what ours have for themselves, and not all: the newest of both are kept."""
    journal.write_all((stranger(number, "x"), NOW + timedelta(seconds=number)) for number in range(3))

    journal.prune(size=journal.size() // 2)

    assert len(journal.select(Query(types=("flood",)))) == 3
    assert 1 <= len(journal.select(Query(types=(events.PODS_GONE,)))) < 10


def test_what_arrives_while_it_prunes_is_left_for_the_next_time(journal_url: str, journal: Journal) -> None:
    """X-6: a flood goes on meanwhile: measured again it is more than others may keep, and ours are the oldest."""

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
    """Large events of others, one a second from now."""
    return [(stranger(number, "x" * 20_000), NOW + timedelta(seconds=number)) for number in range(first, end)]


def unrecorded(source: str, days_ago: int, count: int) -> Iterator[Attempt]:
    """Attempts on events of which there is nothing else, one a second from then on."""
    began = NOW - days_ago * DAY
    return (Attempt(source, f"x{n}", "begin", began + timedelta(seconds=n), 0.1, 204) for n in range(count))


def stranger(number: int, text: str) -> CloudEvent:
    """What somebody posted who is none of our programs."""
    attributes = {"id": str(number), "source": "/flood", "type": "flood", "datacontenttype": "application/json"}
    return CloudEvent(attributes, {"text": text})


def test_much_at_once_is_pruned_before_the_hour_is_over(tmp_path: Path) -> None:
    """X-6: a flood must not fill the disk: an eighth of the limit is written, and the oldest go."""
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
    """Several transactions, one after another."""
    with closing(Journal(journal_url)) as journal:
        journal.write_all(
            (event(events.PODS_GONE, "podsource", MINE, "n", seed=str(number)), NOW - DAY + timedelta(seconds=number))
            for number in range(2500)
        )

        assert journal.prune(age=timedelta(hours=1)) == 2500
        assert journal.prune(size=0) == 0
        assert journal.select(Query(limit=1)) == []


def test_limits_are_read_from_the_environment() -> None:
    """Days and bytes, with Kubernetes' units; unset is no limit."""
    found = Retention.of({"JOURNAL_DAYS": "1.5", "JOURNAL_BYTES": "500Mi"})

    assert found == Retention(timedelta(hours=36), 500 * 2**20)
    assert Retention.of({}) == Retention(None, None)
    assert Retention.of({"JOURNAL_BYTES": "1000"}).size == 1000


@pytest.mark.parametrize("name", ["JOURNAL_DAYS", "JOURNAL_BYTES"])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e3", "nan", "5Gb", " 5", "99999999999999999999"])
def test_a_value_that_is_none_is_named_with_its_variable(name: str, value: str) -> None:
    """X-6: never half a retention by mistake."""
    with pytest.raises(ValueError, match=f"{name}={value} is no number of"):
        Retention.of({name: value})


def test_the_pruner_works_beside_the_writer(journal: Journal) -> None:
    """At the first event, in a thread; not again within the hour."""
    pruner = Pruner(journal, Retention(age=timedelta(days=4.5)))

    for _ in range(3):
        pruner.event_recorded()
    threads = [thread for thread in threading.enumerate() if thread.name == "retention"]
    for thread in threads:
        thread.join(10)

    assert len(threads) <= 1
    assert days(journal) == [4, 3, 2, 1]


def test_one_thread_prunes_and_the_next_begins_when_it_has_ended(tmp_path: Path) -> None:
    """Two that measured the same excess would delete it twice; what came meanwhile is not left for an hour."""
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
    """Refused, it would leave off: till the hour is over where nothing more comes."""
    with ThreadPoolExecutor(1 + FEW) as threads:
        with journal._database.writing():
            writing = [threads.submit(journal.write, stranger(number, "x")) for number in range(FEW)]
            pruning = threads.submit(journal.prune, DAY * 4.5)
            assert wait([pruning], timeout=0.5).not_done
        assert pruning.result(PATIENCE) == 6
        assert all(each.result(PATIENCE) for each in writing)
