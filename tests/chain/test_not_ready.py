"""Tests of a node that becomes NotReady during its maintenance; powering it off is left to the administrator."""

from __future__ import annotations

import json

from eventing.events import RESOURCE_UPDATED
from kube.evictions import pod_path
from kube.nodes import node_path
from kube.paths import Object
from localcluster.demo.event_log import Flow
from tests.chain.environment import Scene
from tests.proofs import proves
from tests.workload import audit

NEVER = "1h"
"""Duration of the pods' termination; longer than the test, as if the kubelet were down."""
WRITTEN = {"nodes", "pods", "nodemaintenances", "leases", "events"}
"""The resources that a maintenance writes; nothing that concerns machines or their power."""


@proves("OSV-15", "C9")
def test_on_a_node_that_is_not_ready_a_maintenance_keeps_its_state_and_waits(scene: Scene) -> None:
    """Terminating pods of a NotReady node stay in `pendingPods`; their deletion completes the maintenance."""
    node = scene.node()
    pods = scene.pods(node, 3, delete=NEVER)
    seen = audit(scene.cluster)
    path = scene.maintain(node)
    scene.reaches(path, lambda item: state(item) == waiting_for(pods))
    for pod in pods:
        scene.reaches(pod_path(pod), lambda item: "deletionTimestamp" in item["metadata"])
    assert " Ready,SchedulingDisabled " in scene.cluster.kubectl("get", "node", node).stdout

    with Flow(scene.product.delivery_log) as flow:
        fall_silent(scene, node)
        flow.await_type(RESOURCE_UPDATED, 120, times=2)  # the product has received the Node's update

    assert " NotReady,SchedulingDisabled " in scene.cluster.kubectl("get", "node", node).stdout
    assert state(scene.admin.get(path)) == waiting_for(pods)
    assert len(scene.pods_on(node)) == 3
    assert "medik8s.io/drain" in {taint["key"] for taint in scene.spec(node)["taints"]}

    for pod in pods:  # as an administrator does after powering the machine off
        where = ("-n", pod["metadata"]["namespace"], pod["metadata"]["name"])
        scene.cluster.kubectl("delete", "pod", *where, "--force", "--grace-period=0")
    done = scene.reaches(path)

    assert state(done) == ("Succeeded", 100, [])
    assert len(scene.evictions(pods)) == 3
    assert {entry["objectRef"]["resource"] for entry in seen.writes_by()} <= WRITTEN
    scene.delete(path)
    scene.gone(path)


def fall_silent(scene: Scene, node: str) -> None:
    """Remove the node from kwok and set it NotReady; return when the controller manager has tainted it."""
    scene.cluster.kubectl("annotate", "node", node, "kwok.x-k8s.io/node-")
    conditions = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "for a test"}]
    patch = json.dumps({"status": {"conditions": conditions}})
    scene.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
    scene.reaches(node_path(node), lambda item: "node.kubernetes.io/not-ready" in taints(item))


def taints(node: Object) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints") or []}


def state(item: Object) -> tuple[str, int, list[str]]:
    """Return the maintenance's phase, progress and pending pods."""
    status = item.get("status") or {}
    return status.get("phase", ""), status.get("drainProgress", 0), sorted(status.get("pendingPods", []))


def waiting_for(pods: list[Object]) -> tuple[str, int, list[str]]:
    """Return the state in which all these pods are pending."""
    return "Running", 0, sorted(pod["metadata"]["name"] for pod in pods)
