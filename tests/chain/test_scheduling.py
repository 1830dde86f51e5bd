"""Test of the real scheduler with a node in maintenance."""

from __future__ import annotations

from kube.paths import Object
from kube.pods import is_ready
from tests.chain.environment import Scene
from tests.proofs import proves


@proves("NMO-3", "OSV-5")
def test_a_pod_for_a_node_in_maintenance_waits_until_the_maintenance_is_over(scene: Scene) -> None:
    """Pods that fit only the node in maintenance are Unschedulable, and run there after the maintenance."""
    node, namespace = scene.node(), scene.namespace()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    path = scene.maintain(node)
    scene.reaches(path)

    scene.admin.create(pods, pod_for(node))
    refused = scene.until(pods, "new", lambda pod: bool(condition(pod)))
    scene.work.until(f"/api/v1/namespaces/{namespace}/events", lambda found: "FailedScheduling" in reasons(found))
    waiting = scene.admin.get(f"{pods}/new")

    scheduled = condition(refused)
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert "0/" in scheduled["message"]
    assert (waiting["status"]["phase"], waiting["spec"].get("nodeName")) == ("Pending", None)
    assert scene.admin.get(path)["status"]["phase"] == "Succeeded"

    scene.delete(path)
    scene.gone(path)

    assert scene.until(pods, "new", is_ready)["spec"]["nodeName"] == node


def pod_for(node: str) -> Object:
    """Build a pod without `nodeName` that fits only this node."""
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "main", "image": "fake"}]}
    return {"metadata": {"name": "new"}, "spec": spec}


def condition(pod: Object) -> Object:
    """Return the pod's condition PodScheduled, {} if the scheduler has not written it."""
    found = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == "PodScheduled"), {})


def reasons(found: dict[str, Object]) -> set[str]:
    return {event["reason"] for event in found.values()}
