"""Test that the real kube-scheduler does not schedule pods to a node under maintenance."""

from __future__ import annotations

from kube.paths import Object
from kube.pods import is_ready
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves


@proves("NMO-3", "OSV-5")
def test_pod_is_unschedulable_during_maintenance(environment: EventChainEnvironment) -> None:
    """Check that a pod that can run only on a node under maintenance is Unschedulable until the maintenance ends."""
    node, namespace = environment.create_node(), environment.create_namespace()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    environment.client.create(pods, build_pod_for(node))
    unscheduled_pod = environment.wait_for_object_state(pods, "new", lambda pod: bool(get_scheduled_condition(pod)))
    environment.workload.wait_for_collection(
        f"/api/v1/namespaces/{namespace}/events",
        lambda kube_events: "FailedScheduling" in list_event_reasons(kube_events),
    )
    new_pod = environment.client.get(f"{pods}/new")

    scheduled = get_scheduled_condition(unscheduled_pod)
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert "0/" in scheduled["message"]
    assert (new_pod["status"]["phase"], new_pod["spec"].get("nodeName")) == ("Pending", None)
    assert environment.client.get(path)["status"]["phase"] == "Succeeded"

    environment.request_deletion(path)
    environment.wait_for_deletion(path)

    assert environment.wait_for_object_state(pods, "new", is_ready)["spec"]["nodeName"] == node


def build_pod_for(node: str) -> Object:
    """Build a pod without `nodeName` that can be scheduled only on this node."""
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "main", "image": "fake"}]}
    return {"metadata": {"name": "new"}, "spec": spec}


def get_scheduled_condition(pod: Object) -> Object:
    """Return the pod's condition PodScheduled, or {} if the scheduler has not written it yet."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


def list_event_reasons(events_by_name: dict[str, Object]) -> set[str]:
    return {event["reason"] for event in events_by_name.values()}
