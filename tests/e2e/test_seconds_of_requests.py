"""Test for the durations of all requests to functions in the tests that ran before this module."""

from __future__ import annotations

import pytest

from functions.serving.handler import DURATION_BUCKETS
from tests.e2e.environment import E2eEnvironment
from tests.machine_speed import measure_slowdown

pytestmark = pytest.mark.e2e


REQUESTS_PER_STALL = 500
"""One in this number of requests may be slow, because the machine stalls while it runs two engines and their tests.

If a function waited for a result, all of its requests would be slow.
"""


def test_no_request_exceeds_two_seconds(environment: E2eEnvironment) -> None:
    """Design rule 3: no function waits, whichever faults are injected."""
    durations = environment.histogram
    print(f"\n{durations}")

    assert durations.count_requests() > 1000, (
        "this test evaluates the requests of the other e2e tests: run them in the same session"
    )
    allowed_seconds = min(2.0 * measure_slowdown(), DURATION_BUCKETS[-1])
    limit = min(bucket for bucket in DURATION_BUCKETS if bucket >= allowed_seconds)
    slow_counts = durations.count_slow_requests(str(limit))
    assert {
        name: count
        for name, count in slow_counts.items()
        if count > max(1, durations.count_requests(name) // REQUESTS_PER_STALL)
    } == {}
    assert durations.count_slow_requests(str(DURATION_BUCKETS[-1])) == {}
