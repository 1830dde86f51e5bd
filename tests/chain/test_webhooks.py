"""Tests of drains while an admission webhook reviews evictions slowly or never responds in time (design rule 9)."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest

from kube.paths import Object
from tests.chain.environment import ChainEnvironment
from tests.eviction_webhook import build_review_response, is_probe, serve_webhook
from tests.proofs import proves
from tests.receiver import ReceivedRequest, Response

pytestmark = pytest.mark.slow

SLOW_SECONDS = 3.0
"""Seconds; longer than a function's deadline for an eviction."""


def list_granted_evictions(environment: ChainEnvironment, pods: list[Object]) -> list[Object]:
    """Return the granted evictions of these pods."""
    return [entry for entry in environment.list_evictions(pods) if entry["responseStatus"]["code"] < 300]


@proves("X-6")
def test_slow_webhook_delays_only_its_pods(environment: ChainEnvironment) -> None:
    """X-6: a slow webhook delays only the pods that it reviews; each is requested at most twice and evicted once."""
    node, slow = environment.create_node(), environment.create_namespace()
    reviewed = environment.create_pods(node, 3, namespace=slow)
    other_pods = environment.create_pods(node, 5)
    never = threading.Event()

    def review_slowly(request: ReceivedRequest) -> Response:
        never.wait(0 if is_probe(request) else SLOW_SECONDS)
        return build_review_response(request)

    with serve_webhook(environment.cluster, slow, review_slowly, 10):
        path = environment.create_maintenance(node)
        environment.await_state(path)

    assert len(list_granted_evictions(environment, reviewed)) == 3
    assert len(environment.list_evictions(reviewed)) <= 2 * 3
    last_granted, first_granted = (
        max(map(_parse_response_time, list_granted_evictions(environment, other_pods))),
        min(map(_parse_response_time, list_granted_evictions(environment, reviewed))),
    )
    assert last_granted < first_granted
    environment.request_deletion(path)
    environment.await_deletion(path)


@pytest.mark.abreast
@proves("X-6")
def test_webhook_timeout_is_reported_and_not_retried_often(environment: ChainEnvironment) -> None:
    """X-6: a webhook that times out is reported for its pods, without frequent retries, and the other pods are evicted.

    The drain completes once the webhook responds again.
    """
    node, namespace = environment.create_node(), environment.create_namespace()
    blocked_pods = environment.create_pods(node, 2, namespace=namespace)
    environment.create_pods(node, 3)
    well = threading.Event()

    def hang(request: ReceivedRequest) -> Response:
        well.wait(0 if is_probe(request) else 60)
        return build_review_response(request)

    with serve_webhook(environment.cluster, namespace, hang, 1):
        path = environment.create_maintenance(node)
        status = _await_blocked_with_backoff(environment, path, blocked_pods)

        assert status["pendingCount"] == 2
        assert all("slow.example.com" in entry["message"] for entry in status["blockedPods"])
        well.set()
        environment.wait_with_ticks(lambda: environment.await_state(path, timeout=1), timeout=90)
    assert len(list_granted_evictions(environment, blocked_pods)) == 2
    environment.request_deletion(path)
    environment.await_deletion(path)


@pytest.mark.abreast
@proves("X-6")
def test_refusal_after_end_of_pass_is_reported(environment: ChainEnvironment) -> None:
    """X-6: the status also reports an eviction's refusal that arrives after the pass that requested the eviction."""
    node, strict = environment.create_node(), environment.create_namespace()
    blocked_pods = environment.create_pods(node, 2, namespace=strict)
    environment.create_pods(node, 3)
    well = threading.Event()

    def refuse_later(request: ReceivedRequest) -> Response:
        well.wait(0 if is_probe(request) else SLOW_SECONDS)
        return build_review_response(request, "" if well.is_set() else "not today")

    with serve_webhook(environment.cluster, strict, refuse_later, 10):
        path = environment.create_maintenance(node)
        status = _await_blocked_with_backoff(environment, path, blocked_pods)

        assert all("not today" in entry["message"] for entry in status["blockedPods"])
        assert "not today" in status["lastError"]
        well.set()
        environment.wait_with_ticks(lambda: environment.await_state(path, timeout=1), timeout=90)
    assert len(list_granted_evictions(environment, blocked_pods)) == 2
    environment.request_deletion(path)
    environment.await_deletion(path)


def _await_blocked_with_backoff(environment: ChainEnvironment, path: str, pods: list[Object]) -> Object:
    """Return the status with these pods blocked until `retryAfter`; assert that ticks do not retry before that."""
    status: Object = environment.await_state(path, lambda item: len(_list_pods_in_backoff(item)) == len(pods))["status"]
    attempt_count = len(environment.list_evictions(pods))
    for _ in range(3):
        environment.send_tick()
    assert len(environment.list_evictions(pods)) == attempt_count <= 3 * len(pods)
    return status


def _list_pods_in_backoff(item: Object) -> list[Object]:
    """Return the blocked pods that have a `retryAfter`."""
    return [entry for entry in (item.get("status") or {}).get("blockedPods") or [] if "retryAfter" in entry]


def _parse_response_time(entry: Object) -> datetime:
    return datetime.fromisoformat(entry["stageTimestamp"].replace("Z", "+00:00"))
