"""Tests of one maintenance from its creation to its deletion, for each of the three API groups."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from kube.maintenance.groups import GROUPS, KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S
from kube.paths import Object
from tests.chain.environment import Scene
from tests.proofs import proves

SAMPLES = {
    MEDIK8S.api_version: ("nodemaintenance-sample", "node02", "Test node maintenance"),
    KUBEVIRT.api_version: ("maintenance-example", "node-1.example.com", "Node maintenance"),
    KUBEVIRT_ALPHA.api_version: ("nodemaintenance-xyz", "node03", "Test node maintenance"),
}
"""API version → name, node and reason, as in the documentation of the three projects."""


@proves("X-7", "NMO-4", "NMO-14", "NMO-15", "KNM-1", "C8", "C19")
@pytest.mark.parametrize("group", GROUPS)
def test_a_sample_drains_its_node_and_gives_it_back(scene: Scene, group: str) -> None:
    """X-7, C2, C3, NMO-3, 4, 6, 10, 14, 15, KNM-1, 4, DRN-12, 13, OSV-5, 11: each group drains and restores."""
    name, wanted, reason = SAMPLES[group]
    node = scene.node(wanted)
    foreign = {"key": "example.com/mine", "value": "yes", "effect": "NoSchedule"}
    scene.cluster.kubectl("taint", "node", node, "example.com/mine=yes:NoSchedule")
    scene.cluster.kubectl("label", "node", node, "example.com/mine=yes")
    pods = scene.pods(node, 3)

    path = scene.maintain(node, group=group, name=name, reason=reason)
    status = scene.reaches(path)["status"]

    spec = scene.spec(node)
    keys = [(taint["key"], taint.get("value"), taint["effect"]) for taint in spec["taints"]]
    assert spec["unschedulable"] is True
    assert keys[0] == ("example.com/mine", "yes", "NoSchedule")
    assert {key[0] for key in keys[1:]} == {GROUPS[group].drain_taint, "node.kubernetes.io/unschedulable"}
    assert all(key[1:] == (None, "NoSchedule") for key in keys[1:])
    assert scene.pods_on(node) == []
    assert len(scene.evictions(pods)) == 3
    assert (status["drainProgress"], status["evictionPods"], status["pendingPods"]) == (100, 3, [])
    assert status["totalpods"] == status["totalPods"] == 3
    assert datetime.strptime(status["lastUpdate"], "%Y-%m-%dT%H:%M:%SZ") > datetime.min

    started = time.monotonic()
    resource = f"nodemaintenances.{group.split('/')[0]}"
    said = scene.cluster.kubectl("delete", resource, name).stdout
    assert time.monotonic() - started < 3
    assert said.strip() == f'nodemaintenance.{group.split("/")[0]} "{name}" deleted'
    after = scene.admin.get(f"/api/v1/nodes/{node}")
    assert not after["spec"].get("unschedulable")
    assert after["spec"]["taints"] == [foreign]
    assert after["metadata"]["labels"]["example.com/mine"] == "yes"


def test_the_conditions_can_be_waited_for(scene: Scene) -> None:
    """NMO-10: `kubectl wait --for=condition=Drained` returns when no pod is left to evict."""
    node = scene.node()
    scene.pods(node, 2, delete="300ms")
    path = scene.maintain(node)

    name = path.rsplit("/", 1)[1]
    scene.cluster.kubectl("wait", "--for=condition=Drained", f"nm/{name}", "--timeout=20s")

    assert scene.pods_on(node) == []
    scene.cluster.kubectl("delete", "nm", name)


@proves("NMO-10")
def test_a_node_without_pods_succeeds_at_once(scene: Scene) -> None:
    """NMO-10: a node without pods to evict succeeds with `evictionPods` 0 and `drainProgress` 100."""
    path = scene.maintain(scene.node())

    status = scene.reaches(path, seconds=10)["status"]

    assert (status["evictionPods"], status["drainProgress"], status["phase"]) == (0, 100, "Succeeded")
    scene.delete(path)
    scene.gone(path)


@proves("NMO-6", "OSV-6", "C8")
def test_pods_do_not_come_back_when_the_node_does(scene: Scene) -> None:
    """OSV-6, NMO-6: a Deployment's pods move to another node and stay there after the maintenance."""
    node, other = scene.node(), scene.node()
    namespace = scene.namespace()
    scene.deployment(namespace, node, 4)
    scene.allow(namespace, other)
    path = scene.maintain(node)
    scene.reaches(path)
    scene.cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=30s")

    scene.delete(path)
    scene.gone(path)

    places = {pod["spec"]["nodeName"] for pod in _pods(scene, namespace)}
    assert places == {other}


@proves("DRN-6")
def test_a_manual_cordon_is_nobody_elses_business(scene: Scene) -> None:
    """DRN-6: the product does not write to a node that was cordoned by hand and has no NodeMaintenance."""
    node = scene.node()
    scene.cluster.kubectl("cordon", node)
    path = scene.maintain(scene.node())
    scene.reaches(path)

    scene.cluster.kubectl("label", "node", node, "example.com/touched=yes")
    scene.delete(path)
    scene.gone(path)

    assert scene.spec(node)["unschedulable"] is True
    assert not [entry for entry in scene.our_writes() if entry["objectRef"].get("name") == node]


@proves("X-7", "NMO-22")
def test_two_maintenances_of_one_node_hold_it_until_both_are_gone(scene: Scene) -> None:
    """NMO-22, X-7: a second maintenance of a node fails, succeeds the first, and restores the node at its deletion."""
    node = scene.node()
    first = scene.maintain(node)
    scene.reaches(first)

    second = scene.maintain(node, group=KUBEVIRT.api_version)
    failed = scene.reaches(second, lambda item: bool((item.get("status") or {}).get("phase")))
    assert failed["status"]["phase"] == "Failed"
    assert f"a NodeMaintenance for node {node} already exists" in failed["status"]["lastError"]

    scene.delete(first)
    scene.gone(first)
    taken_over = scene.reaches(second)
    assert scene.spec(node)["unschedulable"] is True
    assert {taint["key"] for taint in scene.spec(node)["taints"]} == {
        "kubevirt.io/drain",
        "node.kubernetes.io/unschedulable",
    }
    assert "lastError" not in taken_over["status"]

    scene.delete(second)
    scene.gone(second)
    assert "taints" not in scene.spec(node)
    assert not scene.spec(node).get("unschedulable")


@proves("NMO-22")
def test_deleting_the_refused_second_leaves_the_node_in_maintenance(scene: Scene) -> None:
    """NMO-22: deleting a second maintenance, which never held the node, does not uncordon the node."""
    node = scene.node()
    first = scene.maintain(node)
    scene.reaches(first)
    second = scene.maintain(node)
    scene.reaches(second, lambda item: bool((item.get("status") or {}).get("phase")))

    scene.delete(second)
    scene.gone(second)

    assert scene.spec(node)["unschedulable"] is True
    scene.delete(first)
    scene.gone(first)


@proves("NMO-15")
def test_a_deletion_in_the_middle_of_a_drain_stops_it(scene: Scene) -> None:
    """NMO-15: deleting a maintenance whose pods are blocked restores the node and evicts no pod."""
    node, namespace = scene.node(), scene.namespace()
    pods = scene.pods(node, 3, namespace=namespace, labels={"app": "x"})
    scene.budget(namespace, {"app": "x"}, allowed=0, minAvailable=3)
    path = scene.maintain(node)
    scene.reaches(path, lambda item: len((item.get("status") or {}).get("blockedPods") or []) == 3)

    scene.delete(path)
    assert scene.gone(path) < 3

    assert len(scene.pods_on(node)) == 3
    assert scene.evictions(pods) == []
    assert not scene.spec(node).get("unschedulable")


def _pods(scene: Scene, namespace: str) -> list[Object]:
    items: list[Object] = scene.admin.list(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod for pod in items if not pod["metadata"].get("deletionTimestamp")]
