"""Tests of a node that becomes NotReady during its maintenance; powering it off is left to the administrator."""

from __future__ import annotations

import json

from eventing.events import RESOURCE_UPDATED
from kube.evictions import build_pod_path
from kube.nodes import build_node_path
from kube.paths import Object
from localcluster.demo.event_log import EventLogFollower
from tests.chain.environment import ChainEnvironment
from tests.proofs import proves
from tests.workload import start_audit

TERMINATION_DELAY = "1h"
"""Duration of the pods' termination; longer than the test, as if the kubelet were down."""
WRITTEN_RESOURCES = {"nodes", "pods", "nodemaintenances", "leases", "events"}
"""The resources that a maintenance writes; nothing that concerns machines or their power."""


@proves("OSV-15", "C9")
def test_maintenance_of_not_ready_node_keeps_state_until_pods_are_deleted(environment: ChainEnvironment) -> None:
    """Terminating pods of a NotReady node stay in `pendingPods`; their deletion completes the maintenance."""
    node = environment.create_node()
    pods = environment.create_pods(node, 3, delete=TERMINATION_DELAY)
    audit = start_audit(environment.cluster)
    path = environment.create_maintenance(node)
    environment.await_state(path, lambda item: get_state(item) == build_pending_state(pods))
    for pod in pods:
        environment.await_state(build_pod_path(pod), lambda item: "deletionTimestamp" in item["metadata"])
    assert " Ready,SchedulingDisabled " in environment.cluster.kubectl("get", "node", node).stdout

    with EventLogFollower(environment.product.delivery_log) as flow:
        make_node_not_ready(environment, node)
        flow.await_events(RESOURCE_UPDATED, 120, count=2)  # the product has received the Node's update

    assert " NotReady,SchedulingDisabled " in environment.cluster.kubectl("get", "node", node).stdout
    assert get_state(environment.client.get(path)) == build_pending_state(pods)
    assert len(environment.list_pods_on(node)) == 3
    assert "medik8s.io/drain" in {taint["key"] for taint in environment.get_node_spec(node)["taints"]}

    for pod in pods:  # as an administrator does after powering the machine off
        arguments = ("-n", pod["metadata"]["namespace"], pod["metadata"]["name"])
        environment.cluster.kubectl("delete", "pod", *arguments, "--force", "--grace-period=0")
    maintenance = environment.await_state(path)

    assert get_state(maintenance) == ("Succeeded", 100, [])
    assert len(environment.list_evictions(pods)) == 3
    assert {entry["objectRef"]["resource"] for entry in audit.list_writes_by()} <= WRITTEN_RESOURCES
    environment.request_deletion(path)
    environment.await_deletion(path)


def make_node_not_ready(environment: ChainEnvironment, node: str) -> None:
    """Remove the node from kwok and set it NotReady; return when the controller manager has tainted it."""
    environment.cluster.kubectl("annotate", "node", node, "kwok.x-k8s.io/node-")
    conditions = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "for a test"}]
    patch = json.dumps({"status": {"conditions": conditions}})
    environment.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
    environment.await_state(build_node_path(node), lambda item: "node.kubernetes.io/not-ready" in get_taint_keys(item))


def get_taint_keys(node: Object) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints") or []}


def get_state(item: Object) -> tuple[str, int, list[str]]:
    """Return the maintenance's phase, progress and pending pods."""
    status = item.get("status") or {}
    return status.get("phase", ""), status.get("drainProgress", 0), sorted(status.get("pendingPods", []))


def build_pending_state(pods: list[Object]) -> tuple[str, int, list[str]]:
    """Return the state in which all these pods are pending."""
    return "Running", 0, sorted(pod["metadata"]["name"] for pod in pods)
