"""Tests for the fail-fast lock, which rejects other threads while the thread that holds it hangs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

import pytest

from eventing.journal.fail_fast_lock import MAX_WAITERS, FailFastLock
from localcluster.http_receiver import TIMEOUT_SECONDS

pytestmark = pytest.mark.slow


def test_only_one_thread_waits_for_hanging_lock_holder() -> None:
    """Check that one thread waits for a hanging lock holder, and that further threads are rejected immediately.

    A database may accept a commit and never respond. Threads that wait for the lock cannot answer requests or the
    kubelet's probes.
    """
    lock, acquired, release = FailFastLock(OSError), threading.Event(), threading.Event()

    def hold_lock_until_released() -> None:
        with lock.hold(TIMEOUT_SECONDS):
            acquired.set()
            release.wait(TIMEOUT_SECONDS)

    with ThreadPoolExecutor(1) as thread:
        holder = thread.submit(hold_lock_until_released)
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


def test_number_of_threads_waiting_for_slow_lock_holder_is_limited() -> None:
    """Check that at most `MAX_WAITERS` threads wait for a slow lock holder, and that further threads are rejected.

    Otherwise, requests to record events could occupy all ten threads of the process during a slow commit.
    """
    lock = FailFastLock(OSError)

    def acquire_and_release_lock() -> None:
        with lock.hold(TIMEOUT_SECONDS):
            pass

    with ThreadPoolExecutor(10) as threads:
        with lock.hold(0):
            attempts = [threads.submit(acquire_and_release_lock) for _ in range(10)]
            rejected = list(islice(as_completed(attempts, TIMEOUT_SECONDS / 2), 10 - MAX_WAITERS))
            assert [type(attempt.exception()) for attempt in rejected] == [BlockingIOError] * (10 - MAX_WAITERS)
            assert [attempt.done() for attempt in attempts].count(False) == MAX_WAITERS
        assert [attempt.result(TIMEOUT_SECONDS) for attempt in attempts if attempt not in rejected] == [
            None
        ] * MAX_WAITERS


def test_no_thread_of_burst_is_rejected_if_lock_is_held_briefly() -> None:
    """Check that ten simultaneous threads all acquire the lock if each of them holds it only briefly.

    Simultaneous drains of many nodes cause such bursts of events, and no event should need a retry.
    """
    lock, barrier = FailFastLock(OSError), threading.Barrier(11)

    def acquire_and_release_lock() -> None:
        barrier.wait(TIMEOUT_SECONDS)
        with lock.hold(TIMEOUT_SECONDS, contended_timeout=TIMEOUT_SECONDS / 2):
            pass

    with ThreadPoolExecutor(10) as threads:
        with lock.hold(0):
            attempts = [threads.submit(acquire_and_release_lock) for _ in range(10)]
            barrier.wait(TIMEOUT_SECONDS)
        assert [attempt.result(TIMEOUT_SECONDS) for attempt in attempts] == [None] * 10
