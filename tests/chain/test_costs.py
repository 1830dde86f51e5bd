"""What a drain asks of the API server: so many requests and no more."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from tests.chain.mutex.test_speed import Requests
from tests.chain.scene import Scene

pytestmark = pytest.mark.slow

ROUNDS = 3
"""A tick may fall into one of them."""
PODS, REQUESTS = 10, 42
"""Thirty for a node and 1.2 for each pod, watches and the Events behind the end aside."""


def test_a_drain_of_ten_pods_costs_so_many_requests_and_no_more(scene: Scene) -> None:
    """X-3: from the creation to Succeeded; the pods are evicted one by one, all else is read and written once."""
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
