"""Tests of the number of API requests that a drain costs."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from tests.chain.mutex.test_speed import Requests
from tests.chain.environment import Scene

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ROUNDS = 3
"""Number of drains; a tick may add requests to one of them, so the test uses the median."""
PODS, REQUESTS = 10, 42
"""Thirty requests for the node and 1.2 for each pod, without watches and the Events recorded after the end."""


def test_a_drain_of_ten_pods_costs_so_many_requests_and_no_more(scene: Scene) -> None:
    """X-3: a drain of ten pods, from its creation to Succeeded, costs at most `REQUESTS` requests."""
    node, rounds = scene.node(), []
    for _ in range(ROUNDS):
        scene.pods(node, PODS)
        scene.await_delivered()
        asked = Requests(scene.cluster.audit_log)
        path = scene.maintain(node)
        scene.reaches(path)
        rounds.append(Counter(asked.all()))
        scene.delete(path)
        scene.gone(path)

    totals = [found.total() for found in rounds]
    print(f"requests of a drain of {PODS} pods: {totals}; {rounds[0].most_common()}")
    assert statistics.median(totals) <= REQUESTS
