"""Drains of pods that an eviction does not move: no haste, a status that says why, and nobody waits (design rule 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kube.evictions import eviction_of, eviction_path
from kube.paths import Object
from tests.chain.policies import policy
from tests.chain.scene import Scene
from tests.proofs import proves

pytestmark = pytest.mark.slow


def resting(reason: str, count: int) -> Callable[[Object], bool]:
    """Nothing is left but so many pods that are blocked for that reason until a time that is named."""

    def holds(item: Object) -> bool:
        status = item.get("status") or {}
        blocked = [entry for entry in status.get("blockedPods") or [] if entry["reason"] == reason]
        return len(blocked) == status.get("pendingCount") == count and all("retryAfter" in entry for entry in blocked)

    return holds


def test_pods_that_return_are_left_alone_and_nobody_waits_for_them(scene: Scene) -> None:
    """Five replicas tolerate every taint and are back at once; three bare pods go, and ticks bring no haste.

    When the toleration is taken off, the drain ends by itself.
    """
    node, other, namespace = scene.node(), scene.node(), scene.namespace()
    scene.deployment(namespace, node, 5, tolerations=[{"operator": "Exists"}])
    bare = scene.pods(node, 3, namespace=namespace)
    path = scene.maintain(node)

    status = scene.reaches(path, resting("Returns", 5))["status"]

    messages = {entry["message"] for entry in status["blockedPods"]}
    assert len(scene.evictions(bare)) == 3
    assert all(message.startswith("tolerates every taint; ReplicaSet web-") for message in messages)
    assert "tolerates every taint" in status["lastError"]
    evictions = _evictions_in(scene, namespace)
    assert len(evictions) <= 3 + 2 * 5  # all of them once, and again those that were there before the object was read
    for _ in range(3):
        scene.tick()
    assert _evictions_in(scene, namespace) == evictions
    scene.allow(namespace, other)
    spec: Any = {"template": {"spec": {"tolerations": None}}}
    scene.admin.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/web", {"spec": spec})
    scene.reaches(path)
    scene.delete(path)
    scene.gone(path)


@proves("X-6")
def test_pods_that_name_the_node_are_left_alone(scene: Scene) -> None:
    """Rule 9: their template passes the scheduler by, and so the taints: no storm, and the status says why."""
    node, other, namespace = scene.node(), scene.node(), scene.namespace()
    scene.deployment(namespace, node, 5, bound=True)
    path = scene.maintain(node)

    status = scene.reaches(path, resting("Returns", 5))["status"]

    messages = {entry["message"] for entry in status["blockedPods"]}
    assert all(message.startswith("came although the node is closed, or while it was open; ") for message in messages)
    evictions = _evictions_in(scene, namespace)
    # For two seconds, three as Kubernetes counts them, they may be what the scheduler had in its hands: 0.4 s a round.
    assert len(evictions) <= 10 * 5
    for _ in range(3):
        scene.tick()
    assert _evictions_in(scene, namespace) == evictions
    scene.allow(namespace, other)
    spec: Any = {"template": {"spec": {"nodeName": None}}}
    scene.admin.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/web", {"spec": spec})
    scene.reaches(path)
    scene.delete(path)
    scene.gone(path)


@proves("X-6")
def test_a_pod_that_a_policy_refuses_is_tried_ever_more_seldom(scene: Scene) -> None:
    """X-6: the others go; it is blocked with the policy's words, and no tick tries it again before its time."""
    node, namespace = scene.node(), scene.namespace()
    scene.pods(node, 3, namespace=namespace)
    (refused,) = scene.pods(node, 1, namespace=namespace)
    with policy_against(scene, refused):
        rehearsed = len(scene.evictions([refused]))
        path = scene.maintain(node)

        status = scene.reaches(path, resting("Error", 1))["status"]

        assert "this one stays" in status["blockedPods"][0]["message"]
        tried = len(scene.evictions([refused]))
        for _ in range(3):
            scene.tick()
        assert len(scene.evictions([refused])) == tried
        assert tried - rehearsed <= 3  # as long as the others were on their way
    scene.delete(path)
    scene.gone(path)


@contextmanager
def policy_against(scene: Scene, pod: Object) -> Iterator[None]:
    """Have an admission policy refuse the pod's eviction while the block runs."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
    expression = f"object.metadata.name != '{name}' || object.metadata.namespace != '{namespace}'"
    rehearsal = scene.admin.dry_run()

    def attempt() -> object:
        return rehearsal.create(eviction_path(pod), eviction_of(pod))

    with policy(scene, name, rule, expression, "this one stays", attempt):
        yield


def _evictions_in(scene: Scene, namespace: str) -> list[str]:
    """Names of pods whose eviction was requested in this namespace."""
    requests = (entry["objectRef"] for entry in scene.audit() if entry["objectRef"].get("subresource") == "eviction")
    return [found["name"] for found in requests if found["namespace"] == namespace]
