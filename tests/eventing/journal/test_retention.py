"""Tests for the journal's retention limits by age and by size."""

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
from eventing.events import ObjectReference, build_event
from eventing.journal.fail_fast_lock import MAX_WAITERS
from eventing.journal.retention import Pruner, Retention
from eventing.journal.store import Attempt, Journal, Query
from localcluster.http_receiver import TIMEOUT_SECONDS

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
TEST_START = datetime.now(timezone.utc)
ONE_DAY = timedelta(days=1)


@pytest.fixture
def journal_of_ten_days(journal_url: str) -> Iterator[Journal]:
    """Yield a journal with one event and its attempt for each of the last ten days."""
    with closing(Journal(journal_url)) as journal:
        dated_events = [
            (
                build_event(events.PODS_GONE, "podsource", MAINTENANCE, "n", seed=str(day), data={"day": day}),
                TEST_START - day * ONE_DAY,
            )
            for day in range(10, 0, -1)
        ]
        journal.write_events(dated_events)
        journal.write_attempts(
            Attempt(event.get_source(), event.get_id(), "evict", at, 0.1, 204) for event, at in dated_events
        )
        yield journal


def list_days_with_remaining_events(journal: Journal) -> list[int]:
    """Return the days whose events remain in the journal, and check that each event still has its attempt."""
    entries = journal.select(Query(types=(events.PODS_GONE,)))
    assert all(len(entry.attempts) == 1 for entry in entries)
    return [data["day"] for entry in entries if isinstance(data := entry.event.get_data(), dict)]


def test_pruning_without_limits_deletes_nothing(journal_of_ten_days: Journal) -> None:
    """X-2: without a limit, pruning deletes nothing."""
    assert journal_of_ten_days.prune() == 0
    assert len(list_days_with_remaining_events(journal_of_ten_days)) == 10


def test_events_older_than_limit_are_deleted(journal_of_ten_days: Journal) -> None:
    """Check that pruning deletes events that arrived before the age limit, with their attempts."""
    assert journal_of_ten_days.prune(max_age=timedelta(days=4.5)) == 6
    assert list_days_with_remaining_events(journal_of_ten_days) == [4, 3, 2, 1]
    assert journal_of_ten_days.prune(max_age=timedelta(days=4.5)) == 0


def test_oldest_events_are_deleted_to_meet_size_limit(journal_of_ten_days: Journal) -> None:
    """Check that pruning deletes the oldest events until the size is below the limit, and keeps newer events."""
    size = journal_of_ten_days.measure_bytes()

    deleted_count = journal_of_ten_days.prune(max_bytes=size // 2)

    assert journal_of_ten_days.measure_bytes() <= size // 2
    assert deleted_count in (5, 6)
    assert list_days_with_remaining_events(journal_of_ten_days) == list(range(10 - deleted_count, 0, -1))


def test_flood_of_other_events_does_not_displace_product_events(journal_of_ten_days: Journal) -> None:
    """X-6: a flood of events from other sources does not displace product events, which may use half the limit."""
    own_size = journal_of_ten_days.measure_bytes()
    flood = build_flood_events(0, 50)
    journal_of_ten_days.write_events(flood)
    journal_of_ten_days.write_attempts(Attempt("/flood", event.get_id(), "status", at, 0.1, 403) for event, at in flood)

    deleted_count = journal_of_ten_days.prune(max_bytes=4 * own_size)

    remaining = journal_of_ten_days.select(Query(types=("flood",)))
    assert deleted_count == 50 - len(remaining)
    assert journal_of_ten_days.measure_bytes() <= 4 * own_size
    assert len(journal_of_ten_days.select(Query(types=(events.PODS_GONE,)))) == 10
    assert [entry.event.get_id() for entry in remaining] == [str(number) for number in range(50 - len(remaining), 50)]


def test_attempts_are_deleted_together_with_events_from_other_sources(journal_of_ten_days: Journal) -> None:
    """X-6: events from other sources are deleted with their attempts, and may use the space that product events leave.

    In this test, the attempts take more space than the small events.
    """
    own_size = journal_of_ten_days.measure_bytes()
    flood = [(build_foreign_event(number, "x"), TEST_START + timedelta(seconds=number)) for number in range(300)]
    journal_of_ten_days.write_events(flood)
    for function in ("guard", "evict", "status", "resync", "record"):
        journal_of_ten_days.write_attempts(
            Attempt("/flood", event.get_id(), function, at, 0.1, 204) for event, at in flood
        )

    journal_of_ten_days.prune(max_bytes=4 * own_size)

    assert 3.5 * own_size < journal_of_ten_days.measure_bytes() <= 4 * own_size
    assert len(journal_of_ten_days.select(Query(types=(events.PODS_GONE,)))) == 10


def test_attempts_for_unrecorded_events_are_deleted_to_meet_size_limit(journal_of_ten_days: Journal) -> None:
    """X-6: attempts for unrecorded events, which clients post directly to functions, count as from other sources."""
    own_size = journal_of_ten_days.measure_bytes()
    journal_of_ten_days.write_events(
        (build_foreign_event(number, "x"), TEST_START - number * ONE_DAY) for number in range(5)
    )
    journal_of_ten_days.write_attempts(build_unrecorded_attempts("/past-the-broker", 5, count=300))

    journal_of_ten_days.prune(max_bytes=4 * own_size)

    assert 3.5 * own_size < journal_of_ten_days.measure_bytes() <= 4 * own_size
    assert list_days_with_remaining_events(journal_of_ten_days) == list(range(10, 0, -1))
    assert len(journal_of_ten_days.select(Query(types=("flood",)))) == 5


@pytest.mark.parametrize(
    "source", [events.SOURCE_PREFIX + "x", events.SOURCE_PREFIX.upper()], ids=["same prefix", "in upper case"]
)
def test_attempts_with_similar_source_do_not_displace_product_events(journal_of_ten_days: Journal, source: str) -> None:
    """X-6: attempts for unrecorded events with a similar source do not displace the product's events.

    `record` rejects such events, but functions still process them and report their attempts.
    """
    own_size = journal_of_ten_days.measure_bytes()
    journal_of_ten_days.write_attempts(build_unrecorded_attempts(source, 5, count=300))

    journal_of_ten_days.prune(max_bytes=4 * own_size)

    assert 3.5 * own_size < journal_of_ten_days.measure_bytes() <= 4 * own_size
    assert list_days_with_remaining_events(journal_of_ten_days) == list(range(10, 0, -1))


def test_source_in_upper_case_does_not_count_as_product_source(journal_of_ten_days: Journal) -> None:
    """X-6: a source that differs from the product's source only in upper and lower case is another source.

    `record` accepts events from this source without a signature, and SQLite's LIKE would treat both sources as equal.
    """
    own_size = journal_of_ten_days.measure_bytes()
    journal_of_ten_days.write_events(
        (CloudEvent({"id": str(number), "source": events.SOURCE_PREFIX.upper(), "type": "flood"}, None), TEST_START)
        for number in range(100)
    )

    journal_of_ten_days.prune(max_bytes=2 * own_size)

    assert list_days_with_remaining_events(journal_of_ten_days) == list(range(10, 0, -1))


def test_pruning_deletes_no_more_than_needed(journal_of_ten_days: Journal) -> None:
    """X-6: pruning deletes only as many old attempts for unrecorded events as the limit requires."""
    journal_of_ten_days.write_attempts(build_unrecorded_attempts("/past-the-broker", 20, count=20))
    size = journal_of_ten_days.measure_bytes()

    assert journal_of_ten_days.prune(max_bytes=size - 1000) == 0
    assert journal_of_ten_days.measure_bytes() > size - 2000


def test_old_attempts_for_unrecorded_events_are_deleted(journal_of_ten_days: Journal) -> None:
    """Check that attempts for unrecorded events are deleted once they are older than the age limit."""
    before = journal_of_ten_days.measure_bytes()
    journal_of_ten_days.write_attempts(build_unrecorded_attempts("/past-the-broker", 12, count=300))

    journal_of_ten_days.prune(max_age=11 * ONE_DAY)

    assert journal_of_ten_days.measure_bytes() == before


def test_product_events_exceeding_half_of_limit_are_deleted(journal_of_ten_days: Journal) -> None:
    """X-6: if the product's events exceed half of the limit, its oldest events are deleted, and the newest remain."""
    journal_of_ten_days.write_events(
        (build_foreign_event(number, "x"), TEST_START + timedelta(seconds=number)) for number in range(3)
    )

    journal_of_ten_days.prune(max_bytes=journal_of_ten_days.measure_bytes() // 2)

    assert len(journal_of_ten_days.select(Query(types=("flood",)))) == 3
    assert 1 <= len(journal_of_ten_days.select(Query(types=(events.PODS_GONE,)))) < 10


def test_events_arriving_during_pruning_are_kept(journal_url: str, journal_of_ten_days: Journal) -> None:
    """X-6: events that arrive during pruning are not counted until the next pruning.

    Otherwise, a continuing flood would displace the oldest events, which are the product's.
    """

    class FloodedJournal(Journal):
        def measure_bytes(self) -> int:
            before_flood = super().measure_bytes()
            self.write_events(build_flood_events(50, 100))
            return before_flood

    own_size = journal_of_ten_days.measure_bytes()
    journal_of_ten_days.write_events(build_flood_events(0, 50))
    with closing(FloodedJournal(journal_url)) as journal:
        journal.prune(max_bytes=4 * own_size)
        assert len(journal_of_ten_days.select(Query(types=(events.PODS_GONE,)))) == 10
        assert len(journal_of_ten_days.select(Query(types=("flood",)))) >= 50

    journal_of_ten_days.prune(max_bytes=4 * own_size)
    assert journal_of_ten_days.measure_bytes() <= 4 * own_size
    assert len(journal_of_ten_days.select(Query(types=(events.PODS_GONE,)))) == 10


def build_flood_events(first: int, end: int) -> list[tuple[CloudEvent, datetime]]:
    """Build large events from other sources that arrive one per second, starting now."""
    return [
        (build_foreign_event(number, "x" * 20_000), TEST_START + timedelta(seconds=number))
        for number in range(first, end)
    ]


def build_unrecorded_attempts(source: str, days_ago: int, count: int) -> Iterator[Attempt]:
    """Build attempts for unrecorded events, one per second, starting `days_ago` days ago."""
    start = TEST_START - days_ago * ONE_DAY
    return (Attempt(source, f"x{n}", "begin", start + timedelta(seconds=n), 0.1, 204) for n in range(count))


def build_foreign_event(number: int, text: str) -> CloudEvent:
    """Build an event from a source outside this product."""
    attributes = {"id": str(number), "source": "/flood", "type": "flood", "datacontenttype": "application/json"}
    return CloudEvent(attributes, {"text": text})


def test_flood_triggers_pruning_before_interval_ends(tmp_path: Path) -> None:
    """X-6: pruning starts early after writes of an eighth of the limit, so that a flood cannot fill the disk."""
    pruned = threading.Event()

    class PruneSignalingJournal(Journal):
        def prune(self, max_age: timedelta | None = None, max_bytes: int | None = None) -> int:
            count = super().prune(max_age, max_bytes)
            if count:
                pruned.set()
            return count

    with closing(PruneSignalingJournal(tmp_path / "journal.db")) as journal:
        pruner = Pruner(journal, Retention(max_bytes=40_000))
        for number in range(20):
            journal.write_event(build_foreign_event(number, "x" * 5000))
            pruner.prune_if_due()

        assert pruned.wait(10)


@pytest.mark.slow
def test_pruning_uses_several_transactions(journal_url: str) -> None:
    """Check that pruning can delete more events than a single transaction deletes."""
    with closing(Journal(journal_url)) as journal:
        journal.write_events(
            (
                build_event(events.PODS_GONE, "podsource", MAINTENANCE, "n", seed=str(number)),
                TEST_START - ONE_DAY + timedelta(seconds=number),
            )
            for number in range(2500)
        )

        assert journal.prune(max_age=timedelta(hours=1)) == 2500
        assert journal.prune(max_bytes=0) == 0
        assert journal.select(Query(limit=1)) == []


def test_retention_limits_are_read_from_environment() -> None:
    """Check that environment variables set the journal's limits, in days and in bytes with Kubernetes unit suffixes."""
    retention = Retention.from_environment({"JOURNAL_DAYS": "1.5", "JOURNAL_BYTES": "500Mi"})

    assert retention == Retention(timedelta(hours=36), 500 * 2**20)
    assert Retention.from_environment({}) == Retention(None, None)
    assert Retention.from_environment({"JOURNAL_BYTES": "1000"}).max_bytes == 1000


@pytest.mark.parametrize("name", ["JOURNAL_DAYS", "JOURNAL_BYTES"])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e3", "nan", "5Gb", " 5", "99999999999999999999"])
def test_error_for_invalid_limit_names_variable(name: str, value: str) -> None:
    """X-6: the error about an invalid limit names the environment variable, so that no limit is silently ignored."""
    with pytest.raises(ValueError, match=f"{name}={value} is not a number of"):
        Retention.from_environment({name: value})


def test_pruner_runs_once_per_interval_in_background_thread(journal_of_ten_days: Journal) -> None:
    """Check that the first event starts a pruning thread, and that no second one starts within an hour."""
    pruner = Pruner(journal_of_ten_days, Retention(max_age=timedelta(days=4.5)))

    for _ in range(3):
        pruner.prune_if_due()
    threads = [thread for thread in threading.enumerate() if thread.name == "retention"]
    for thread in threads:
        thread.join(10)

    assert len(threads) <= 1
    assert list_days_with_remaining_events(journal_of_ten_days) == [4, 3, 2, 1]


def test_only_one_thread_prunes_at_a_time(tmp_path: Path) -> None:
    """Check that only one thread prunes at a time, and that another thread may prune afterwards.

    Two concurrent threads could both measure the same excess, and together delete twice as much as necessary.
    """
    started, resume = threading.Semaphore(0), threading.Event()

    class SlowJournal(Journal):
        def prune(self, max_age: timedelta | None = None, max_bytes: int | None = None) -> int:
            started.release()
            resume.wait(TIMEOUT_SECONDS)
            return super().prune(max_age, max_bytes)

    with closing(SlowJournal(tmp_path / "journal.db")) as journal:
        pruner = Pruner(journal, Retention(max_bytes=40_000))
        pruner.prune_if_due()
        assert started.acquire(timeout=TIMEOUT_SECONDS)
        for number in range(20):
            journal.write_event(build_foreign_event(number, "x" * 5000))
            pruner.prune_if_due()
        (pruning,) = [thread for thread in threading.enumerate() if thread.name == "retention"]
        resume.set()
        pruning.join(TIMEOUT_SECONDS)

        pruner.prune_if_due()
        assert started.acquire(timeout=TIMEOUT_SECONDS)


def test_pruning_waits_for_slow_commit_while_writers_wait(journal_of_ten_days: Journal) -> None:
    """Check that pruning waits for a slow commit even if `MAX_WAITERS` writers are already waiting.

    If the lock rejected the pruning thread, the next attempt to prune would follow only after an hour.
    """
    with ThreadPoolExecutor(1 + MAX_WAITERS) as threads:
        with journal_of_ten_days._database.begin():
            writing = [
                threads.submit(journal_of_ten_days.write_event, build_foreign_event(number, "x"))
                for number in range(MAX_WAITERS)
            ]
            pruning = threads.submit(journal_of_ten_days.prune, ONE_DAY * 4.5)
            assert wait([pruning], timeout=0.5).not_done
        assert pruning.result(TIMEOUT_SECONDS) == 6
        assert all(attempt.result(TIMEOUT_SECONDS) for attempt in writing)
