"""Tests of the time limits of the writes in a pass of `protect`, which depend on the pass's deadline."""

from __future__ import annotations

import pytest

from functions.virtualization.budget_writes import REST_SECONDS, WRITE_SECONDS, Writes
from kube.client.deadline import seconds_left, within

LOOK_SECONDS = 1.6
MARGIN = 0.15
"""Tolerance in seconds for delays on a busy machine."""


def seconds_of_writes(writes: Writes, look_seconds: float, count: int) -> list[float]:
    given: list[float] = []
    with within(look_seconds):
        for _ in range(count):
            writes.tried("/budget", lambda: given.append(seconds_left()))
    return given


def test_the_first_write_of_a_look_may_be_slow_and_no_other_one() -> None:
    """Check that a pass's first write gets all unreserved time, and each later one a fixed limit.

    Passes start with different VMIs in turn, so even a slow webhook prevents no budget from being written.
    """
    writes = Writes()
    first, *others = seconds_of_writes(writes, LOOK_SECONDS, 3)

    assert first == pytest.approx(LOOK_SECONDS - REST_SECONDS, abs=MARGIN)
    assert others == pytest.approx([WRITE_SECONDS] * 2, abs=MARGIN)
    assert (writes.sent, writes.unanswered) == (3, [])


def test_a_first_write_late_in_a_look_has_as_much_time_as_any() -> None:
    """Check that a late first write gets the usual limit, and is not sent if less time than the reserve is left."""
    writes = Writes()

    assert seconds_of_writes(writes, WRITE_SECONDS, 1) == pytest.approx([WRITE_SECONDS], abs=MARGIN)
    assert seconds_of_writes(writes, REST_SECONDS / 2, 1) == []
    assert (writes.sent, writes.unanswered) == (1, ["/budget"])
