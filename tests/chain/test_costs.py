"""Tests of the number of API requests that a drain costs."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from tests.chain.environment import ChainEnvironment
from tests.chain.mutex.test_speed import RequestLog

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DRAIN_COUNT = 3
"""Number of drains; a tick may add requests to one of them, so the test uses the median."""
POD_COUNT, MAX_REQUESTS = 10, 42
"""Thirty requests for the node and 1.2 for each pod, without watches and the Events recorded after the end."""


def test_drain_of_ten_pods_stays_within_request_budget(environment: ChainEnvironment) -> None:
    """X-3: a drain of ten pods, from its creation to Succeeded, costs at most `MAX_REQUESTS` requests."""
    node, rounds = environment.create_node(), []
    for _ in range(DRAIN_COUNT):
        environment.create_pods(node, POD_COUNT)
        environment.await_delivered()
        log = RequestLog(environment.cluster.audit_log)
        path = environment.create_maintenance(node)
        environment.await_state(path)
        rounds.append(Counter(log.list_requests()))
        environment.request_deletion(path)
        environment.await_deletion(path)

    totals = [requests.total() for requests in rounds]
    print(f"requests of a drain of {POD_COUNT} pods: {totals}; {rounds[0].most_common()}")
    assert statistics.median(totals) <= MAX_REQUESTS
