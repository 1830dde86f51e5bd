"""Test for a node that becomes NotReady during its maintenance: the product must not power the node off."""

from __future__ import annotations

import json

from eventing.events import RESOURCE_UPDATED
from kube.evictions.requests import build_pod_path
from kube.nodes import build_node_path
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.demo.event_log import EventLogFollower
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves

TERMINATION_DELAY = "1h"
"""Termination delay of the pods in kwok; longer than the test, as if the node's kubelet were down."""
WRITTEN_RESOURCES = {"nodes", "pods", "nodemaintenances", "leases", "events"}
"""The resources that the product may write to during a maintenance; none of them represents a machine."""


@proves("OSV-15", "C9")
def test_terminating_pods_on_not_ready_node_stay_pending_until_deleted(environment: EventChainEnvironment) -> None:
    """Check that terminating pods on a NotReady node stay in `pendingPods` until they are deleted."""
    node = environment.create_node()
    pods = environment.create_pods(node, 3, delete=TERMINATION_DELAY)
    audit = AuditLog(environment.cluster.audit_log)
    path = environment.create_maintenance(node)
    environment.wait_for_state(
        path, lambda maintenance: get_drain_state(maintenance) == build_pending_drain_state(pods)
    )
    for pod in pods:
        environment.wait_for_state(build_pod_path(pod), lambda pod: "deletionTimestamp" in pod["metadata"])
    assert " Ready,SchedulingDisabled " in environment.cluster.kubectl("get", "node", node).stdout

    with EventLogFollower(environment.product.delivery_log) as event_log:
        make_node_not_ready(environment, node)
        # The second update event shows that the product has received the NotReady Node.
        event_log.wait_for_events(RESOURCE_UPDATED, 120, count=2)

    assert " NotReady,SchedulingDisabled " in environment.cluster.kubectl("get", "node", node).stdout
    assert get_drain_state(environment.client.get(path)) == build_pending_drain_state(pods)
    assert len(environment.list_pods_on(node)) == 3
    assert "medik8s.io/drain" in {taint["key"] for taint in environment.get_node_spec(node)["taints"]}

    for pod in pods:  # An administrator force-deletes the pods like this after powering the machine off.
        arguments = ("-n", pod["metadata"]["namespace"], pod["metadata"]["name"])
        environment.cluster.kubectl("delete", "pod", *arguments, "--force", "--grace-period=0")
    maintenance = environment.wait_for_state(path)

    assert get_drain_state(maintenance) == ("Succeeded", 100, [])
    assert len(environment.list_evictions(pods)) == 3
    assert {entry["objectRef"]["resource"] for entry in audit.list_writes_by()} <= WRITTEN_RESOURCES
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def make_node_not_ready(environment: EventChainEnvironment, node: str) -> None:
    """Stop kwok's updates to the node, set it NotReady, and wait until the node lifecycle controller has tainted it."""
    environment.cluster.kubectl("annotate", "node", node, "kwok.x-k8s.io/node-")
    conditions = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "for a test"}]
    patch = json.dumps({"status": {"conditions": conditions}})
    environment.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
    environment.wait_for_state(
        build_node_path(node), lambda node: "node.kubernetes.io/not-ready" in get_taint_keys(node)
    )


def get_taint_keys(node: Object) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints") or []}


def get_drain_state(maintenance: Object) -> tuple[str, int, list[str]]:
    """Return the maintenance's phase, progress and pending pods."""
    status = maintenance.get("status") or {}
    return status.get("phase", ""), status.get("drainProgress", 0), sorted(status.get("pendingPods", []))


def build_pending_drain_state(pods: list[Object]) -> tuple[str, int, list[str]]:
    """Return the result of `get_drain_state` for a maintenance whose pods are all pending."""
    return "Running", 0, sorted(pod["metadata"]["name"] for pod in pods)
