"""Test for the number of API requests that the product sends during a drain."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from tests.chain.environment import EventChainEnvironment
from tests.chain.mutex.test_speed import RequestLog

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DRAIN_COUNT = 3
"""Number of drains; the test uses the median, because a resync tick may add requests to one drain."""
POD_COUNT, MAX_REQUESTS = 10, 42
"""Thirty requests per node and 1.2 per pod, without watches and without Events recorded after the drain."""


def test_drain_of_ten_pods_stays_within_request_limit(environment: EventChainEnvironment) -> None:
    """X-3: the product sends at most `MAX_REQUESTS` requests to drain ten pods, from creation to `Succeeded`."""
    node, request_counts_by_drain = environment.create_node(), []
    for _ in range(DRAIN_COUNT):
        environment.create_pods(node, POD_COUNT)
        environment.wait_until_delivered()
        log = RequestLog(environment.cluster.audit_log)
        path = environment.create_maintenance(node)
        environment.wait_for_state(path)
        request_counts_by_drain.append(Counter(log.list_requests()))
        environment.request_deletion(path)
        environment.wait_for_deletion(path)

    totals = [requests.total() for requests in request_counts_by_drain]
    print(f"requests per drain of {POD_COUNT} pods: {totals}; {request_counts_by_drain[0].most_common()}")
    assert statistics.median(totals) <= MAX_REQUESTS
