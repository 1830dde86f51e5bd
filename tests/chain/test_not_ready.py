"""A node whose kubelet falls silent while it is in maintenance: powering it off is the administrator's business."""

from __future__ import annotations

import json

from eventing.events import RESOURCE_UPDATED
from kube.evictions import pod_path
from kube.nodes import node_path
from kube.paths import Object
from localcluster.demo.flow import Flow
from tests.chain.scene import Scene
from tests.proofs import proves
from tests.workload import audit

NEVER = "1h"
"""How long the pods take to end: nobody is there to end them."""
WRITTEN = {"nodes", "pods", "nodemaintenances", "leases", "events"}
"""What a maintenance writes at all. Machines and their power are none of it."""


@proves("OSV-15", "C9")
def test_on_a_node_that_is_not_ready_a_maintenance_keeps_its_state_and_waits(scene: Scene) -> None:
    """Pods marked Terminating stay in pendingPods, no power is touched, and it ends when the pods are gone."""
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
        flow.await_type(RESOURCE_UPDATED, 120, times=2)  # the product has heard of it

    assert " NotReady,SchedulingDisabled " in scene.cluster.kubectl("get", "node", node).stdout
    assert state(scene.admin.get(path)) == waiting_for(pods)
    assert len(scene.pods_on(node)) == 3
    assert "medik8s.io/drain" in {taint["key"] for taint in scene.spec(node)["taints"]}

    for pod in pods:  # as an administrator does who knows that the machine is off
        where = ("-n", pod["metadata"]["namespace"], pod["metadata"]["name"])
        scene.cluster.kubectl("delete", "pod", *where, "--force", "--grace-period=0")
    done = scene.reaches(path)

    assert state(done) == ("Succeeded", 100, [])
    assert len(scene.evictions(pods)) == 3
    assert {entry["objectRef"]["resource"] for entry in seen.writes_by()} <= WRITTEN
    scene.delete(path)
    scene.gone(path)


def fall_silent(scene: Scene, node: str) -> None:
    """Take the node from the fake kubelet and say that it is not ready; return when the cluster acts on that."""
    scene.cluster.kubectl("annotate", "node", node, "kwok.x-k8s.io/node-")
    conditions = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "for a test"}]
    patch = json.dumps({"status": {"conditions": conditions}})
    scene.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
    scene.reaches(node_path(node), lambda item: "node.kubernetes.io/not-ready" in taints(item))


def taints(node: Object) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints") or []}


def state(item: Object) -> tuple[str, int, list[str]]:
    """Phase, progress and pending pods of a maintenance."""
    status = item.get("status") or {}
    return status.get("phase", ""), status.get("drainProgress", 0), sorted(status.get("pendingPods", []))


def waiting_for(pods: list[Object]) -> tuple[str, int, list[str]]:
    """The state in which all these pods are still to go."""
    return "Running", 0, sorted(pod["metadata"]["name"] for pod in pods)
