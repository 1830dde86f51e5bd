"""Test for the number of API requests that a drain takes."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from tests.chain.environment import ChainEnvironment
from tests.chain.mutex.test_speed import RequestLog

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DRAIN_COUNT = 3
"""Number of drains; a tick may add requests to one drain, so the test uses the median."""
POD_COUNT, MAX_REQUESTS = 10, 42
"""Thirty requests for the node and 1.2 per pod, not counting watches and Events recorded after the drain."""


def test_drain_of_ten_pods_stays_within_request_limit(environment: ChainEnvironment) -> None:
    """X-3: a drain of ten pods takes at most `MAX_REQUESTS` requests from its creation until it has succeeded."""
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
