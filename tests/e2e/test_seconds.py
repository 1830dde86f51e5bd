"""Looks back on the tests before it, so its name comes last: how long the functions' requests took."""

from __future__ import annotations

import pytest

from functions.serving.metrics import SHORT
from tests.e2e.stage import Stage
from tests.machine import slowness

pytestmark = pytest.mark.e2e


def test_no_request_took_longer_than_two_seconds(stage: Stage) -> None:
    """Design rule 3: no function waits, whatever was broken meanwhile."""
    print(f"\n{stage.histogram}")

    assert stage.histogram.requests() > 1000, "this looks back on the other tests: run them with it"
    limit = min(bound for bound in SHORT if bound >= min(2.0 * slowness(), SHORT[-1]))
    assert stage.histogram.over(str(limit)) == {}
