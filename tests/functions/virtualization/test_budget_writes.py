"""Tests for the time limits of the PDB writes in a pass of `protect`, which depend on the deadline of the pass."""

from __future__ import annotations

import pytest

from functions.virtualization.protect import RESERVED_SECONDS, WRITE_TIMEOUT_SECONDS, BudgetWriter
from kube.client.deadline import get_seconds_left, set_deadline

PASS_SECONDS = 1.6
TOLERANCE_SECONDS = 0.15
"""Tolerance in seconds for delays on a busy machine."""


def measure_write_time_limits(writer: BudgetWriter, pass_seconds: float, write_count: int) -> list[float]:
    limits: list[float] = []
    with set_deadline(pass_seconds):
        for _ in range(write_count):
            writer.try_write("/budget", lambda: limits.append(get_seconds_left()))
    return limits


def test_only_first_write_of_pass_may_be_slow() -> None:
    """Check that a pass's first write gets all unreserved time, and each later write a fixed time limit.

    Each pass starts with the next VMI, so a slow admission webhook does not keep any PDB from being written.
    """
    writer = BudgetWriter()
    first_limit, *later_limits = measure_write_time_limits(writer, PASS_SECONDS, 3)

    assert first_limit == pytest.approx(PASS_SECONDS - RESERVED_SECONDS, abs=TOLERANCE_SECONDS)
    assert later_limits == pytest.approx([WRITE_TIMEOUT_SECONDS] * 2, abs=TOLERANCE_SECONDS)
    assert (writer.sent_count, writer.unanswered) == (3, [])


def test_first_write_late_in_pass_gets_fixed_time_limit() -> None:
    """Check that a late first write gets the fixed time limit, and is not sent within the reserved time."""
    writer = BudgetWriter()

    assert measure_write_time_limits(writer, WRITE_TIMEOUT_SECONDS, 1) == pytest.approx(
        [WRITE_TIMEOUT_SECONDS], abs=TOLERANCE_SECONDS
    )
    assert measure_write_time_limits(writer, RESERVED_SECONDS / 2, 1) == []
    assert (writer.sent_count, writer.unanswered) == (1, ["/budget"])
