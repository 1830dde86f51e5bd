"""Tests of drains while an admission webhook reviews evictions slowly or never responds in time (design rule 9)."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest

from kube.paths import Object
from tests.chain.environment import Scene
from tests.proofs import proves
from tests.receiver import Answer, Received
from tests.eviction_webhook import admission, is_of_nobody, webhook

pytestmark = pytest.mark.slow

SLOW = 3.0
"""Seconds; longer than a function's deadline for an eviction."""


def granted(scene: Scene, pods: list[Object]) -> list[Object]:
    """Return the granted evictions of these pods."""
    return [entry for entry in scene.evictions(pods) if entry["responseStatus"]["code"] < 300]


@proves("X-6")
def test_a_slow_webhook_costs_time_only_and_only_where_it_is_asked(scene: Scene) -> None:
    """X-6: a slow webhook delays only the pods that it reviews; each is requested at most twice and evicted once."""
    node, slow = scene.node(), scene.namespace()
    reviewed = scene.pods(node, 3, namespace=slow)
    others = scene.pods(node, 5)
    never = threading.Event()

    def take_time(request: Received) -> Answer:
        never.wait(0 if is_of_nobody(request) else SLOW)
        return admission(request)

    with webhook(scene.cluster, slow, take_time, 10):
        path = scene.maintain(node)
        scene.reaches(path)

    assert len(granted(scene, reviewed)) == 3
    assert len(scene.evictions(reviewed)) <= 2 * 3
    last, first = (max(map(_answered, granted(scene, others))), min(map(_answered, granted(scene, reviewed))))
    assert last < first
    scene.delete(path)
    scene.gone(path)


@pytest.mark.abreast
@proves("X-6")
def test_a_webhook_that_does_not_answer_in_time_is_named_and_not_stormed(scene: Scene) -> None:
    """X-6: a webhook that times out is reported for its pods, without frequent retries, and the other pods are evicted.

    The drain completes once the webhook responds again.
    """
    node, hung = scene.node(), scene.namespace()
    stuck = scene.pods(node, 2, namespace=hung)
    scene.pods(node, 3)
    well = threading.Event()

    def hang(request: Received) -> Answer:
        well.wait(0 if is_of_nobody(request) else 60)
        return admission(request)

    with webhook(scene.cluster, hung, hang, 1):
        path = scene.maintain(node)
        status = _blocked_and_in_no_haste(scene, path, stuck)

        assert status["pendingCount"] == 2
        assert all("slow.example.com" in entry["message"] for entry in status["blockedPods"])
        well.set()
        scene.by_ticks(lambda: scene.reaches(path, seconds=1), seconds=90)
    assert len(granted(scene, stuck)) == 2
    scene.delete(path)
    scene.gone(path)


@pytest.mark.abreast
@proves("X-6")
def test_a_refusal_that_comes_after_the_look_is_told(scene: Scene) -> None:
    """X-6: the status also reports an eviction's refusal that arrives after the pass that requested the eviction."""
    node, strict = scene.node(), scene.namespace()
    refused = scene.pods(node, 2, namespace=strict)
    scene.pods(node, 3)
    well = threading.Event()

    def refuse_later(request: Received) -> Answer:
        well.wait(0 if is_of_nobody(request) else SLOW)
        return admission(request, "" if well.is_set() else "not today")

    with webhook(scene.cluster, strict, refuse_later, 10):
        path = scene.maintain(node)
        status = _blocked_and_in_no_haste(scene, path, refused)

        assert all("not today" in entry["message"] for entry in status["blockedPods"])
        assert "not today" in status["lastError"]
        well.set()
        scene.by_ticks(lambda: scene.reaches(path, seconds=1), seconds=90)
    assert len(granted(scene, refused)) == 2
    scene.delete(path)
    scene.gone(path)


def _blocked_and_in_no_haste(scene: Scene, path: str, pods: list[Object]) -> Object:
    """Return the status with these pods blocked until `retryAfter`; assert that ticks do not retry before that."""
    status: Object = scene.reaches(path, lambda item: len(_told(item)) == len(pods))["status"]
    tried = len(scene.evictions(pods))
    for _ in range(3):
        scene.tick()
    assert len(scene.evictions(pods)) == tried <= 3 * len(pods)
    return status


def _told(item: Object) -> list[Object]:
    """Return the blocked pods that have a `retryAfter`."""
    return [entry for entry in (item.get("status") or {}).get("blockedPods") or [] if "retryAfter" in entry]


def _answered(entry: Object) -> datetime:
    return datetime.fromisoformat(entry["stageTimestamp"].replace("Z", "+00:00"))
