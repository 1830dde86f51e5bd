"""How long each write of a look at budgets may take, by the deadline that it meets."""

from __future__ import annotations

import pytest

from functions.virtualization.writes import REST_SECONDS, WRITE_SECONDS, Writes
from kube.door.deadline import seconds_left, within

LOOK_SECONDS = 1.6
MARGIN = 0.15
"""What a busy computer may need between two lines."""


def seconds_of_writes(writes: Writes, look_seconds: float, count: int) -> list[float]:
    given: list[float] = []
    with within(look_seconds):
        for _ in range(count):
            writes.tried("/budget", lambda: given.append(seconds_left()))
    return given


def test_the_first_write_of_a_look_may_be_slow_and_no_other_one() -> None:
    """Looks begin with one machine after another, so that a slow webhook keeps no budget from being written."""
    writes = Writes()
    first, *others = seconds_of_writes(writes, LOOK_SECONDS, 3)

    assert first == pytest.approx(LOOK_SECONDS - REST_SECONDS, abs=MARGIN)
    assert others == pytest.approx([WRITE_SECONDS] * 2, abs=MARGIN)
    assert (writes.sent, writes.unanswered) == (3, [])


def test_a_first_write_late_in_a_look_has_as_much_time_as_any() -> None:
    """It leaves less for what comes behind it, as the others do; where there is not even that it is not tried."""
    writes = Writes()

    assert seconds_of_writes(writes, WRITE_SECONDS, 1) == pytest.approx([WRITE_SECONDS], abs=MARGIN)
    assert seconds_of_writes(writes, REST_SECONDS / 2, 1) == []
    assert (writes.sent, writes.unanswered) == (1, ["/budget"])
