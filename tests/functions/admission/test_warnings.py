"""Tests of the admission warnings that a client receives when it creates a NodeMaintenance."""

from __future__ import annotations

import json

import pytest

from kube.client.decoding import hearing
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.functions.admission.maintenances import create, named
from tests.proofs import proves
from tests.workload import Workload, pod_on

LABELS = {"app": "db"}


def warned(door: Cluster, item: Object) -> list[str]:
    with hearing() as heard:
        create(door, item)
    return heard


@proves("NMO-18")
def test_of_a_quiet_node_nothing_is_said(work: Workload, door: Cluster) -> None:
    node = work.node()
    work.daemonset("agent", node)
    work.deployment("web", node, 2)

    assert warned(door, named(node)) == []


@proves("NMO-18")
def test_bare_pods_lost_data_and_a_budget_are_warned_of(work: Workload, door: Cluster) -> None:
    node, space = work.node(), work.namespace
    pod = pod_on(node, "bare", labels=LABELS)
    work.put(space, [{**pod, "spec": {**pod["spec"], "volumes": [{"name": "scratch", "emptyDir": {}}]}}])
    work.budget("closed", LABELS, 1, counted=1)

    assert warned(door, named(node)) == [
        f"1 pod that no controller makes again will be gone for good: {space}/bare",
        f"emptyDir data of 1 pod will be lost: {space}/bare",
        f"budget {space}/closed asks for all of its pods and never lets one go, add replicas or change it; "
        f"it keeps 1 pod here: {space}/bare",
    ]


@proves("NMO-18")
def test_a_budget_that_opens_or_shuts_is_known_at_once(work: Workload, door: Cluster) -> None:
    """Check that a warning reflects a new budget within a moment, because the webhook watches budgets."""
    node, space = work.node(), work.namespace
    work.pods(node, "one", "two", labels=LABELS)
    work.budget("one", LABELS, 1, counted=2)
    work.budget("two", LABELS, 1, counted=2)

    words = (
        f"2 pods under two disruption budgets cannot be evicted, delete or narrow one of them: {space}/one, {space}/two"
    )

    def says() -> bool:
        with hearing() as heard:
            door.dry_run().create(MEDIK8S.path, named(node))
        return words in heard

    assert any(says() for _ in range(50))


def test_kubectl_shows_them(work: Workload, door: Cluster, guarded: LocalCluster) -> None:
    node = work.node()
    work.pods(node, "bare")

    done = guarded.kubectl("create", "-f", "-", input=json.dumps(named(node)))

    assert done.stderr == (
        f"Warning: 1 pod that no controller makes again will be gone for good: {work.namespace}/bare\n"
    )


@pytest.mark.parametrize("group", ["nodemaintenance.medik8s.io", "nodemaintenance.kubevirt.io"])
def test_a_drain_that_keeps_them_warns_of_none(work: Workload, door: Cluster, group: str) -> None:
    node = work.node()
    work.pods(node, "bare")
    item = {**named(node, drain={"force": False}), "apiVersion": f"{group}/v1beta1"}

    assert warned(door, item) == []
