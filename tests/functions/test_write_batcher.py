"""Tests of `Gathering`: writes of one object are serialized, and the parts that wait are written together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from functions.failures import Retry
from functions.write_batcher import Gathering
from kube.client.deadline import within

PATIENCE = 30.0
SOON = 0.2
"""Seconds after which a started thread is expected to wait."""


class Gated:
    """Writes that block until the test ends them."""

    def __init__(self) -> None:
        self.begun: list[list[str]] = []
        self._gathering = Gathering[str]()
        self._began = threading.Semaphore(0)
        self._ends: list[Future[None]] = []
        self._threads = ThreadPoolExecutor(8)

    def _write(self, parts: Sequence[str]) -> None:
        self.begun.append(sorted(parts))
        end: Future[None] = Future()
        self._ends.append(end)
        self._began.release()
        end.result(PATIENCE)

    def post(self, thing: str, part: str, seconds: float = PATIENCE) -> Future[None]:
        """Write a part in a thread with this deadline, in seconds, and return its Future."""

        def one() -> None:
            with within(seconds):
                self._gathering.write(thing, part, self._write)

        return self._threads.submit(one)

    def begin(self, thing: str, part: str) -> Future[None]:
        """Post a part and return its Future when its write has begun."""
        answer = self.post(thing, part)
        self.await_write()
        return answer

    def await_write(self) -> None:
        assert self._began.acquire(timeout=PATIENCE)

    def end(self, number: int, error: Exception | None = None) -> None:
        """End the write that started as this number, successfully or with an error."""
        if error:
            self._ends[number].set_exception(error)
        else:
            self._ends[number].set_result(None)


@pytest.fixture
def gated() -> Gated:
    """Return writes that block until the test ends them."""
    return Gated()


def waiting(*answers: Future[None]) -> bool:
    """Return whether all answers are still pending after their threads have had time to wait."""
    with pytest.raises(TimeoutError):
        answers[-1].result(SOON)
    return not any(answer.done() for answer in answers)


def test_what_waits_is_written_together(gated: Gated) -> None:
    """Design rule 8: parts that wait for a write are written together, and each caller returns after its write."""
    first = gated.begin("status", "a")
    others = [gated.post("status", part) for part in "bcd"]
    assert waiting(*others)

    gated.end(0)
    first.result(PATIENCE)
    gated.await_write()
    assert waiting(*others)
    gated.end(1)
    for other in others:
        other.result(PATIENCE)

    assert gated.begun == [["a"], ["b", "c", "d"]]


def test_things_do_not_wait_for_each_other(gated: Gated) -> None:
    """Writes of different objects do not wait for each other."""
    slow = gated.begin("one", "a")
    quick = gated.begin("other", "b")

    gated.end(1)
    quick.result(PATIENCE)
    assert waiting(slow)
    gated.end(0)
    slow.result(PATIENCE)


def test_a_write_that_fails_is_tried_again_by_all_whose_parts_it_had(gated: Gated) -> None:
    """X-6: a failed write raises an error for each caller whose part it had, and does not affect the next write."""
    first = gated.begin("status", "a")
    others = [gated.post("status", part) for part in "bc"]
    assert waiting(*others)
    gated.end(0)
    gated.await_write()

    gated.end(1, ConnectionError("away"))
    errors = [type(other.exception(PATIENCE)) for other in others]
    last = gated.begin("status", "d")
    gated.end(2)

    assert (first.result(PATIENCE), last.result(PATIENCE)) == (None, None)
    assert sorted(error.__name__ for error in errors) == ["ConnectionError", "Retry"]


def test_who_has_no_time_left_retries_and_leaves_the_others_in_peace(gated: Gated) -> None:
    """X-6: a caller without time left raises `Retry`, and later parts are written without its part."""
    slow = gated.begin("status", "a")
    hasty = gated.post("status", "b", seconds=SOON)
    assert isinstance(hasty.exception(PATIENCE), Retry)

    later = gated.post("status", "c")
    assert waiting(slow, later)
    gated.end(0)
    gated.await_write()
    gated.end(1)

    assert (slow.result(PATIENCE), later.result(PATIENCE)) == (None, None)
    assert gated.begun == [["a"], ["c"]]
