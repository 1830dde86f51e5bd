"""Tests for the lock that rejects other threads while its holder hangs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

import pytest

from eventing.journal.fail_fast_lock import MAX_WAITERS, FailFastLock
from tests.receiver import TIMEOUT_SECONDS

pytestmark = pytest.mark.slow


def test_only_one_thread_waits_for_hanging_holder() -> None:
    """Check that one thread waits for a hanging holder until its timeout, and that later threads are rejected at once.

    A database may accept a commit and never respond. Threads that wait for the lock cannot answer requests or the
    kubelet's probes.
    """
    lock, acquired, release = FailFastLock(OSError), threading.Event(), threading.Event()

    def hold_until_released() -> None:
        with lock.hold(TIMEOUT_SECONDS):
            acquired.set()
            release.wait(TIMEOUT_SECONDS)

    with ThreadPoolExecutor(1) as thread:
        holder = thread.submit(hold_until_released)
        acquired.wait(TIMEOUT_SECONDS)
        with pytest.raises(BlockingIOError), lock.hold(0.05):
            pass
        started = time.monotonic()
        with pytest.raises(BlockingIOError), lock.hold(TIMEOUT_SECONDS):
            pass
        assert time.monotonic() - started < TIMEOUT_SECONDS / 2
        release.set()
        holder.result(TIMEOUT_SECONDS)

    with lock.hold(0):
        pass


def test_at_most_max_waiters_threads_wait_for_slow_holder() -> None:
    """Check that at most `MAX_WAITERS` threads wait for a slow holder, and that the others are rejected promptly.

    Otherwise events for the journal could occupy all ten threads of a process for the duration of a commit.
    """
    lock = FailFastLock(OSError)

    def acquire_and_release() -> None:
        with lock.hold(TIMEOUT_SECONDS):
            pass

    with ThreadPoolExecutor(10) as threads:
        with lock.hold(0):
            attempts = [threads.submit(acquire_and_release) for _ in range(10)]
            rejected = list(islice(as_completed(attempts, TIMEOUT_SECONDS / 2), 10 - MAX_WAITERS))
            assert [type(attempt.exception()) for attempt in rejected] == [BlockingIOError] * (10 - MAX_WAITERS)
            assert [attempt.done() for attempt in attempts].count(False) == MAX_WAITERS
        assert [attempt.result(TIMEOUT_SECONDS) for attempt in attempts if attempt not in rejected] == [
            None
        ] * MAX_WAITERS


def test_all_threads_of_burst_acquire_lock_if_each_holds_it_briefly() -> None:
    """Check that every thread of a burst acquires the lock if each holds it only briefly.

    Draining many nodes causes such bursts, and no event should be rejected and retried a second later.
    """
    lock, barrier = FailFastLock(OSError), threading.Barrier(11)

    def acquire_and_release() -> None:
        barrier.wait(TIMEOUT_SECONDS)
        with lock.hold(TIMEOUT_SECONDS, crowded_timeout=TIMEOUT_SECONDS / 2):
            pass

    with ThreadPoolExecutor(10) as threads:
        with lock.hold(0):
            attempts = [threads.submit(acquire_and_release) for _ in range(10)]
            barrier.wait(TIMEOUT_SECONDS)
        assert [attempt.result(TIMEOUT_SECONDS) for attempt in attempts] == [None] * 10
