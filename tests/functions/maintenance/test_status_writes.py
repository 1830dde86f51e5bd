"""Tests for status writes: waiting writes are merged into one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from functions.failures import Retry
from functions.maintenance.status_writes import WriteBatcher
from kube.client.deadline import set_deadline

TIMEOUT_SECONDS = 30.0
THREAD_START_SECONDS = 0.2
"""Time within which a started thread is expected to reach its blocking call."""


class BlockingWrites:
    """Writes through a `WriteBatcher`, each of which blocks until the test ends it."""

    def __init__(self) -> None:
        self.started_parts: list[list[str]] = []
        self._batcher = WriteBatcher[str]()
        self._started = threading.Semaphore(0)
        self._endings: list[Future[None]] = []
        self._threads = ThreadPoolExecutor(8)

    def _write(self, parts: Sequence[str]) -> None:
        self.started_parts.append(sorted(parts))
        finished: Future[None] = Future()
        self._endings.append(finished)
        self._started.release()
        finished.result(TIMEOUT_SECONDS)

    def submit(self, key: str, part: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Future[None]:
        """Write one part of the object `key` in a thread, with this timeout, and return the call's Future."""

        def write_part() -> None:
            with set_deadline(timeout_seconds):
                self._batcher.write(key, part, self._write)

        return self._threads.submit(write_part)

    def submit_and_wait_for_start(self, key: str, part: str) -> Future[None]:
        """Write a part in a thread, and return the call's Future as soon as the write has begun."""
        response = self.submit(key, part)
        self.wait_for_write()
        return response

    def wait_for_write(self) -> None:
        assert self._started.acquire(timeout=TIMEOUT_SECONDS)

    def end_write(self, index: int, error: Exception | None = None) -> None:
        """End the write with this index (in start order), successfully or with an error."""
        if error:
            self._endings[index].set_exception(error)
        else:
            self._endings[index].set_result(None)


@pytest.fixture
def blocking_writes() -> BlockingWrites:
    """Return writes that block until the test ends them."""
    return BlockingWrites()


def are_pending(*futures: Future[None]) -> bool:
    """Return whether all futures are still pending after `THREAD_START_SECONDS`."""
    with pytest.raises(TimeoutError):
        futures[-1].result(THREAD_START_SECONDS)
    return not any(future.done() for future in futures)


def test_waiting_parts_are_written_together(blocking_writes: BlockingWrites) -> None:
    """Design rule 8: parts that wait for a write are written together, and each caller returns after the write."""
    first = blocking_writes.submit_and_wait_for_start("status", "a")
    others = [blocking_writes.submit("status", part) for part in "bcd"]
    assert are_pending(*others)

    blocking_writes.end_write(0)
    first.result(TIMEOUT_SECONDS)
    blocking_writes.wait_for_write()
    assert are_pending(*others)
    blocking_writes.end_write(1)
    for other in others:
        other.result(TIMEOUT_SECONDS)

    assert blocking_writes.started_parts == [["a"], ["b", "c", "d"]]


def test_objects_are_written_independently(blocking_writes: BlockingWrites) -> None:
    """Check that writes to different objects do not wait for each other."""
    slow = blocking_writes.submit_and_wait_for_start("one", "a")
    other_write = blocking_writes.submit_and_wait_for_start("other", "b")

    blocking_writes.end_write(1)
    other_write.result(TIMEOUT_SECONDS)
    assert are_pending(slow)
    blocking_writes.end_write(0)
    slow.result(TIMEOUT_SECONDS)


def test_failed_write_raises_error_for_all_waiting_callers(blocking_writes: BlockingWrites) -> None:
    """X-6: a failed write raises an error for each caller whose part it contained; the next write is unaffected."""
    first = blocking_writes.submit_and_wait_for_start("status", "a")
    others = [blocking_writes.submit("status", part) for part in "bc"]
    assert are_pending(*others)
    blocking_writes.end_write(0)
    blocking_writes.wait_for_write()

    blocking_writes.end_write(1, ConnectionError("away"))
    errors = [type(other.exception(TIMEOUT_SECONDS)) for other in others]
    next_write = blocking_writes.submit_and_wait_for_start("status", "d")
    blocking_writes.end_write(2)

    assert (first.result(TIMEOUT_SECONDS), next_write.result(TIMEOUT_SECONDS)) == (None, None)
    assert sorted(error.__name__ for error in errors) == ["ConnectionError", "Retry"]


def test_caller_past_deadline_raises_retry(blocking_writes: BlockingWrites) -> None:
    """X-6: a caller whose deadline passes raises `Retry`, and its part is not written with later parts."""
    slow = blocking_writes.submit_and_wait_for_start("status", "a")
    timed_out_call = blocking_writes.submit("status", "b", timeout_seconds=THREAD_START_SECONDS)
    assert isinstance(timed_out_call.exception(TIMEOUT_SECONDS), Retry)

    later_call = blocking_writes.submit("status", "c")
    assert are_pending(slow, later_call)
    blocking_writes.end_write(0)
    blocking_writes.wait_for_write()
    blocking_writes.end_write(1)

    assert (slow.result(TIMEOUT_SECONDS), later_call.result(TIMEOUT_SECONDS)) == (None, None)
    assert blocking_writes.started_parts == [["a"], ["c"]]
