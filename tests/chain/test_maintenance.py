"""Tests for a maintenance from its creation to its deletion, for each of the three API groups."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from kube.maintenance.groups import GROUPS, KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S
from kube.paths import Object
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves

SAMPLE_BY_API_VERSION = {
    MEDIK8S.api_version: ("nodemaintenance-sample", "node02", "Test node maintenance"),
    KUBEVIRT.api_version: ("maintenance-example", "node-1.example.com", "Node maintenance"),
    KUBEVIRT_ALPHA.api_version: ("nodemaintenance-xyz", "node03", "Test node maintenance"),
}
"""Map from API version to node name and reason of the NodeMaintenance in the project's documentation."""


@proves("X-7", "NMO-4", "NMO-14", "NMO-15", "KNM-1", "C8", "C19")
@pytest.mark.parametrize("api_version", GROUPS)
def test_sample_maintenance_drains_and_restores_node(environment: EventChainEnvironment, api_version: str) -> None:
    """X-7, C2, C3, NMO-3, 4, 6, 10, 14, 15, KNM-1, 4, DRN-12, 13, OSV-5, 11: the documented samples work."""
    name, node_name, reason = SAMPLE_BY_API_VERSION[api_version]
    node = environment.create_node(node_name)
    foreign_taint = {"key": "example.com/mine", "value": "yes", "effect": "NoSchedule"}
    environment.cluster.kubectl("taint", "node", node, "example.com/mine=yes:NoSchedule")
    environment.cluster.kubectl("label", "node", node, "example.com/mine=yes")
    pods = environment.create_pods(node, 3)

    path = environment.create_maintenance(node, api_version=api_version, name=name, reason=reason)
    status = environment.wait_for_state(path)["status"]

    spec = environment.get_node_spec(node)
    taints = [(taint["key"], taint.get("value"), taint["effect"]) for taint in spec["taints"]]
    assert spec["unschedulable"] is True
    assert taints[0] == ("example.com/mine", "yes", "NoSchedule")
    assert {taint[0] for taint in taints[1:]} == {GROUPS[api_version].drain_taint, "node.kubernetes.io/unschedulable"}
    assert all(taint[1:] == (None, "NoSchedule") for taint in taints[1:])
    assert environment.list_pods_on(node) == []
    assert len(environment.list_evictions(pods)) == 3
    assert (status["drainProgress"], status["evictionPods"], status["pendingPods"]) == (100, 3, [])
    assert status["totalpods"] == status["totalPods"] == 3
    assert datetime.strptime(status["lastUpdate"], "%Y-%m-%dT%H:%M:%SZ") > datetime.min

    started = time.monotonic()
    resource = f"nodemaintenances.{api_version.split('/')[0]}"
    output = environment.cluster.kubectl("delete", resource, name).stdout
    assert time.monotonic() - started < 3
    assert output.strip() == f'nodemaintenance.{api_version.split("/")[0]} "{name}" deleted'
    restored_node = environment.client.get(f"/api/v1/nodes/{node}")
    assert not restored_node["spec"].get("unschedulable")
    assert restored_node["spec"]["taints"] == [foreign_taint]
    assert restored_node["metadata"]["labels"]["example.com/mine"] == "yes"


def test_kubectl_wait_returns_once_node_is_drained(environment: EventChainEnvironment) -> None:
    """NMO-10: `kubectl wait --for=condition=Drained` returns when no pods remain to be evicted."""
    node = environment.create_node()
    environment.create_pods(node, 2, delete="300ms")
    path = environment.create_maintenance(node)

    name = path.rsplit("/", 1)[1]
    environment.cluster.kubectl("wait", "--for=condition=Drained", f"nm/{name}", "--timeout=20s")

    assert environment.list_pods_on(node) == []
    environment.cluster.kubectl("delete", "nm", name)


@proves("NMO-10")
def test_maintenance_of_node_without_pods_succeeds(environment: EventChainEnvironment) -> None:
    """NMO-10: a maintenance without pods to evict succeeds with `evictionPods` 0 and `drainProgress` 100."""
    path = environment.create_maintenance(environment.create_node())

    status = environment.wait_for_state(path, timeout=10)["status"]

    assert (status["evictionPods"], status["drainProgress"], status["phase"]) == (0, 100, "Succeeded")
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("NMO-6", "OSV-6", "C8")
def test_evicted_pods_do_not_return_to_node_after_maintenance(environment: EventChainEnvironment) -> None:
    """OSV-6, NMO-6: a Deployment's pods move to another node and stay there after the maintenance."""
    node, other_node = environment.create_node(), environment.create_node()
    namespace = environment.create_namespace()
    environment.create_deployment(namespace, node, 4)
    environment.allow_deployment_on_node(namespace, other_node)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)
    environment.cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=30s")

    environment.request_deletion(path)
    environment.wait_for_deletion(path)

    node_names = {pod["spec"]["nodeName"] for pod in _list_running_pods(environment, namespace)}
    assert node_names == {other_node}


@proves("DRN-6")
def test_product_does_not_write_to_manually_cordoned_node(environment: EventChainEnvironment) -> None:
    """DRN-6: the product does not write to a node that was cordoned by hand and has no NodeMaintenance."""
    node = environment.create_node()
    environment.cluster.kubectl("cordon", node)
    path = environment.create_maintenance(environment.create_node())
    environment.wait_for_state(path)

    environment.cluster.kubectl("label", "node", node, "example.com/touched=yes")
    environment.request_deletion(path)
    environment.wait_for_deletion(path)

    assert environment.get_node_spec(node)["unschedulable"] is True
    assert not [entry for entry in environment.list_product_writes() if entry["objectRef"].get("name") == node]


@proves("X-7", "NMO-22")
def test_second_maintenance_takes_over_after_first_is_deleted(environment: EventChainEnvironment) -> None:
    """NMO-22, X-7: a second maintenance for a node fails, and takes over after the first is deleted."""
    node = environment.create_node()
    first_path = environment.create_maintenance(node)
    environment.wait_for_state(first_path)

    second_path = environment.create_maintenance(node, api_version=KUBEVIRT.api_version)
    failed_maintenance = environment.wait_for_state(
        second_path, lambda maintenance: bool((maintenance.get("status") or {}).get("phase"))
    )
    assert failed_maintenance["status"]["phase"] == "Failed"
    assert f"a NodeMaintenance for node {node} already exists" in failed_maintenance["status"]["lastError"]

    environment.request_deletion(first_path)
    environment.wait_for_deletion(first_path)
    succeeded_maintenance = environment.wait_for_state(second_path)
    assert environment.get_node_spec(node)["unschedulable"] is True
    assert {taint["key"] for taint in environment.get_node_spec(node)["taints"]} == {
        "kubevirt.io/drain",
        "node.kubernetes.io/unschedulable",
    }
    assert "lastError" not in succeeded_maintenance["status"]

    environment.request_deletion(second_path)
    environment.wait_for_deletion(second_path)
    assert "taints" not in environment.get_node_spec(node)
    assert not environment.get_node_spec(node).get("unschedulable")


@proves("NMO-22")
def test_deleting_failed_second_maintenance_keeps_node_cordoned(environment: EventChainEnvironment) -> None:
    """NMO-22: deleting a failed second maintenance does not uncordon the node of the first maintenance."""
    node = environment.create_node()
    first_path = environment.create_maintenance(node)
    environment.wait_for_state(first_path)
    second_path = environment.create_maintenance(node)
    environment.wait_for_state(second_path, lambda maintenance: bool((maintenance.get("status") or {}).get("phase")))

    environment.request_deletion(second_path)
    environment.wait_for_deletion(second_path)

    assert environment.get_node_spec(node)["unschedulable"] is True
    environment.request_deletion(first_path)
    environment.wait_for_deletion(first_path)


@proves("NMO-15")
def test_deletion_during_drain_stops_evictions(environment: EventChainEnvironment) -> None:
    """NMO-15: deleting a maintenance whose pods are blocked restores the node without evicting a pod."""
    node, namespace = environment.create_node(), environment.create_namespace()
    pods = environment.create_pods(node, 3, namespace=namespace, labels={"app": "x"})
    environment.create_budget(namespace, {"app": "x"}, disruptions_allowed=0, minAvailable=3)
    path = environment.create_maintenance(node)
    environment.wait_for_state(
        path, lambda maintenance: len((maintenance.get("status") or {}).get("blockedPods") or []) == 3
    )

    environment.request_deletion(path)
    assert environment.wait_for_deletion(path) < 3

    assert len(environment.list_pods_on(node)) == 3
    assert environment.list_evictions(pods) == []
    assert not environment.get_node_spec(node).get("unschedulable")


def _list_running_pods(environment: EventChainEnvironment, namespace: str) -> list[Object]:
    pods: list[Object] = environment.client.list(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
