"""Tests for drains while an admission webhook for evictions is slow or times out (design rule 9)."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest

from kube.paths import Object
from localcluster.http_receiver import ReceivedRequest, Response
from tests.chain.environment import EventChainEnvironment
from tests.eviction_webhook import build_review_response, is_probe, serve_webhook
from tests.proofs import proves

pytestmark = pytest.mark.slow

SLOW_SECONDS = 3.0
"""Seconds of a slow review; longer than a function's deadline for an eviction."""


def list_granted_evictions(environment: EventChainEnvironment, pods: list[Object]) -> list[Object]:
    """Return the audit log entries of these pods' granted evictions."""
    return [entry for entry in environment.list_evictions(pods) if entry["responseStatus"]["code"] < 300]


@proves("X-6")
def test_slow_webhook_delays_only_pods_that_it_reviews(environment: EventChainEnvironment) -> None:
    """X-6: a slow webhook delays only the pods that it reviews, and their evictions are requested at most twice."""
    node, slow_namespace = environment.create_node(), environment.create_namespace()
    reviewed_pods = environment.create_pods(node, 3, namespace=slow_namespace)
    other_pods = environment.create_pods(node, 5)
    never_set = threading.Event()

    def review_slowly(request: ReceivedRequest) -> Response:
        never_set.wait(0 if is_probe(request) else SLOW_SECONDS)
        return build_review_response(request)

    with serve_webhook(environment.cluster, slow_namespace, review_slowly, 10):
        path = environment.create_maintenance(node)
        environment.wait_for_state(path)

    assert len(list_granted_evictions(environment, reviewed_pods)) == 3
    assert len(environment.list_evictions(reviewed_pods)) <= 2 * 3
    last_other_eviction, first_reviewed_eviction = (
        max(map(_parse_response_time, list_granted_evictions(environment, other_pods))),
        min(map(_parse_response_time, list_granted_evictions(environment, reviewed_pods))),
    )
    assert last_other_eviction < first_reviewed_eviction
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.mark.abreast
@proves("X-6")
def test_timed_out_eviction_is_reported_and_rarely_retried(environment: EventChainEnvironment) -> None:
    """X-6: an eviction that a webhook's timeout rejects is reported and retried with backoff; other pods are evicted.

    The drain completes once the webhook responds again.
    """
    node, namespace = environment.create_node(), environment.create_namespace()
    blocked_pods = environment.create_pods(node, 2, namespace=namespace)
    environment.create_pods(node, 3)
    is_webhook_healthy = threading.Event()

    def hang(request: ReceivedRequest) -> Response:
        is_webhook_healthy.wait(0 if is_probe(request) else 60)
        return build_review_response(request)

    with serve_webhook(environment.cluster, namespace, hang, 1):
        path = environment.create_maintenance(node)
        status = _wait_until_blocked_with_backoff(environment, path, blocked_pods)

        assert status["pendingCount"] == 2
        assert all("slow.example.com" in entry["message"] for entry in status["blockedPods"])
        is_webhook_healthy.set()
        environment.wait_with_ticks(lambda: environment.wait_for_state(path, timeout=1), timeout=90)
    assert len(list_granted_evictions(environment, blocked_pods)) == 2
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.mark.abreast
@proves("X-6")
def test_eviction_rejected_after_end_of_pass_is_reported(environment: EventChainEnvironment) -> None:
    """X-6: the status reports a rejected eviction even if the rejection arrives after the end of the `evict` pass."""
    node, strict_namespace = environment.create_node(), environment.create_namespace()
    blocked_pods = environment.create_pods(node, 2, namespace=strict_namespace)
    environment.create_pods(node, 3)
    is_webhook_healthy = threading.Event()

    def reject_slowly(request: ReceivedRequest) -> Response:
        is_webhook_healthy.wait(0 if is_probe(request) else SLOW_SECONDS)
        return build_review_response(request, "" if is_webhook_healthy.is_set() else "rejected by the test")

    with serve_webhook(environment.cluster, strict_namespace, reject_slowly, 10):
        path = environment.create_maintenance(node)
        status = _wait_until_blocked_with_backoff(environment, path, blocked_pods)

        assert all("rejected by the test" in entry["message"] for entry in status["blockedPods"])
        assert "rejected by the test" in status["lastError"]
        is_webhook_healthy.set()
        environment.wait_with_ticks(lambda: environment.wait_for_state(path, timeout=1), timeout=90)
    assert len(list_granted_evictions(environment, blocked_pods)) == 2
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def _wait_until_blocked_with_backoff(environment: EventChainEnvironment, path: str, pods: list[Object]) -> Object:
    """Wait until these pods are in backoff, assert that ticks do not retry, and return the maintenance."""
    status: Object = environment.wait_for_state(
        path, lambda maintenance: len(_list_pods_in_backoff(maintenance)) == len(pods)
    )["status"]
    eviction_count = len(environment.list_evictions(pods))
    for _ in range(3):
        environment.send_tick()
    assert len(environment.list_evictions(pods)) == eviction_count <= 3 * len(pods)
    return status


def _list_pods_in_backoff(maintenance: Object) -> list[Object]:
    """Return the blocked pods that have a `retryAfter`."""
    return [entry for entry in (maintenance.get("status") or {}).get("blockedPods") or [] if "retryAfter" in entry]


def _parse_response_time(audit_entry: Object) -> datetime:
    return datetime.fromisoformat(audit_entry["stageTimestamp"].replace("Z", "+00:00"))
