"""Test of the durations of the functions' requests in the tests that ran before this module."""

from __future__ import annotations

import pytest

from functions.serving.metrics import SHORT
from tests.e2e.environment import Stage
from tests.machine_speed import slowness

pytestmark = pytest.mark.e2e


STALLS = 500
"""One of this many requests may be slow because the machine, with two engines and their tests, stalled.

A function that waits would be slow at every such request.
"""


def test_no_request_took_longer_than_two_seconds(stage: Stage) -> None:
    """Design rule 3: no function waits, whatever fault was injected."""
    seen = stage.histogram
    print(f"\n{seen}")

    assert seen.requests() > 1000, "this looks back on the other tests: run them with it"
    allowed = min(2.0 * slowness(), SHORT[-1])
    limit = min(bound for bound in SHORT if bound >= allowed)
    slow = seen.over(str(limit))
    assert {name: count for name, count in slow.items() if count > max(1, seen.requests(name) // STALLS)} == {}
    assert seen.over(str(SHORT[-1])) == {}
