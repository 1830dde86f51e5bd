"""Tests of the eviction backoff (design rule 9) for pods that return or whose eviction is refused.

The product evicts such pods rarely, and the status gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kube.evictions import eviction_of, eviction_path
from kube.paths import Object
from tests.chain.admission_policies import policy
from tests.chain.environment import Scene
from tests.proofs import proves

pytestmark = pytest.mark.slow


def resting(reason: str, count: int) -> Callable[[Object], bool]:
    """Return a predicate: `count` pods are pending, and all are blocked for `reason` with a `retryAfter`."""

    def holds(item: Object) -> bool:
        status = item.get("status") or {}
        blocked = [entry for entry in status.get("blockedPods") or [] if entry["reason"] == reason]
        return len(blocked) == status.get("pendingCount") == count and all("retryAfter" in entry for entry in blocked)

    return holds


def test_pods_that_return_are_left_alone_and_nobody_waits_for_them(scene: Scene) -> None:
    """Recreated pods that tolerate every taint are in backoff: three bare pods leave, and ticks evict no pod again.

    The drain completes once the toleration is removed.
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
    # One eviction for each pod, and one more for each replacement that existed before its owner was read.
    assert len(evictions) <= 3 + 2 * 5
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
    """Rule 9: pods whose template sets `nodeName` are in backoff, and the status gives the reason.

    Such a template bypasses the scheduler and so the taints.
    """
    node, other, namespace = scene.node(), scene.node(), scene.namespace()
    scene.deployment(namespace, node, 5, bound=True)
    path = scene.maintain(node)

    status = scene.reaches(path, resting("Returns", 5))["status"]

    messages = {entry["message"] for entry in status["blockedPods"]}
    assert all(message.startswith("came although the node is closed, or while it was open; ") for message in messages)
    evictions = _evictions_in(scene, namespace)
    # The scheduler may still bind pods for two seconds after the cordon, three with timestamps in whole seconds.
    # In this time a round of evictions takes 0.4 s.
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
    """X-6: a pod that a policy rejects is reported with the policy's message, and ticks respect its backoff.

    The other pods are evicted.
    """
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
        assert tried - rehearsed <= 3  # retried only as long as other evictions succeeded
    scene.delete(path)
    scene.gone(path)


@contextmanager
def policy_against(scene: Scene, pod: Object) -> Iterator[None]:
    """Let an admission policy reject the pod's eviction while the block runs."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
    expression = f"object.metadata.name != '{name}' || object.metadata.namespace != '{namespace}'"
    rehearsal = scene.admin.dry_run()

    def attempt() -> object:
        return rehearsal.create(eviction_path(pod), eviction_of(pod))

    with policy(scene, name, rule, expression, "this one stays", attempt):
        yield


def _evictions_in(scene: Scene, namespace: str) -> list[str]:
    """Return the names of the pods in this namespace whose eviction was requested."""
    requests = (entry["objectRef"] for entry in scene.audit() if entry["objectRef"].get("subresource") == "eviction")
    return [found["name"] for found in requests if found["namespace"] == namespace]
