"""Test of the durations of the functions' requests in the tests that ran before this module."""

from __future__ import annotations

import pytest

from functions.serving.metrics import DURATION_BUCKETS
from tests.e2e.environment import E2eEnvironment
from tests.machine_speed import measure_slowdown

pytestmark = pytest.mark.e2e


REQUESTS_PER_STALL = 500
"""One of this many requests may be slow because the machine, with two engines and their tests, stalled.

A function that waits would be slow at every such request.
"""


def test_no_request_exceeds_two_seconds(environment: E2eEnvironment) -> None:
    """Design rule 3: no function waits, whatever fault was injected."""
    durations = environment.histogram
    print(f"\n{durations}")

    assert durations.count_requests() > 1000, "this test evaluates the requests of the other tests: run them, too"
    allowed = min(2.0 * measure_slowdown(), DURATION_BUCKETS[-1])
    limit = min(bucket for bucket in DURATION_BUCKETS if bucket >= allowed)
    slow = durations.count_slow_requests(str(limit))
    assert {
        name: count
        for name, count in slow.items()
        if count > max(1, durations.count_requests(name) // REQUESTS_PER_STALL)
    } == {}
    assert durations.count_slow_requests(str(DURATION_BUCKETS[-1])) == {}
