"""Tests for the admission warnings that a client receives when it creates a NodeMaintenance."""

from __future__ import annotations

import json

import pytest

from kube.client.decoding import collect_warnings
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.functions.admission.maintenances import build_maintenance, create_maintenance
from tests.proofs import proves
from tests.workload import Workload, build_pod

DATABASE_LABELS = {"app": "db"}


def create_and_collect_warnings(client: SyncClient, maintenance: Object) -> list[str]:
    with collect_warnings() as collected_warnings:
        create_maintenance(client, maintenance)
    return collected_warnings


@proves("NMO-18")
def test_drain_of_evictable_pods_causes_no_warnings(workload: Workload, client: SyncClient) -> None:
    node = workload.take_node()
    workload.create_daemonset("agent", node)
    workload.create_deployment("web", node, 2)

    assert create_and_collect_warnings(client, build_maintenance(node)) == []


@proves("NMO-18")
def test_bare_pods_lost_data_and_blocking_pdb_cause_warnings(workload: Workload, client: SyncClient) -> None:
    node, namespace = workload.take_node(), workload.namespace
    pod = build_pod(node, "bare", labels=DATABASE_LABELS)
    workload.create_pods(
        namespace, [{**pod, "spec": {**pod["spec"], "volumes": [{"name": "scratch", "emptyDir": {}}]}}]
    )
    workload.create_budget("closed", DATABASE_LABELS, 1, expected_healthy=1)

    assert create_and_collect_warnings(client, build_maintenance(node)) == [
        f"no controller will recreate 1 pod after the eviction: {namespace}/bare",
        f"emptyDir data of 1 pod will be lost: {namespace}/bare",
        f"budget {namespace}/closed requires all of its pods to be healthy, so it allows no eviction: "
        f"add replicas or change the budget; it blocks 1 pod: {namespace}/bare",
    ]


@proves("NMO-18")
def test_new_pdb_appears_in_warning(workload: Workload, client: SyncClient) -> None:
    """Check that a warning mentions a new PDB soon after its creation, because the webhook watches PDBs."""
    node, namespace = workload.take_node(), workload.namespace
    workload.create_bare_pods(node, "one", "two", labels=DATABASE_LABELS)
    workload.create_budget("one", DATABASE_LABELS, 1, expected_healthy=2)
    workload.create_budget("two", DATABASE_LABELS, 1, expected_healthy=2)

    warning = (
        "2 pods cannot be evicted under several disruption budgets; delete or narrow one of the budgets: "
        f"{namespace}/one, {namespace}/two"
    )

    def has_warning() -> bool:
        with collect_warnings() as collected_warnings:
            client.with_dry_run().create(MEDIK8S.path, build_maintenance(node))
        return warning in collected_warnings

    assert any(has_warning() for _ in range(50))


def test_kubectl_prints_admission_warnings(
    workload: Workload, client: SyncClient, webhook_cluster: LocalCluster
) -> None:
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")

    result = webhook_cluster.kubectl("create", "-f", "-", input=json.dumps(build_maintenance(node)))

    assert result.stderr == (
        f"Warning: no controller will recreate 1 pod after the eviction: {workload.namespace}/bare\n"
    )


@pytest.mark.parametrize("group", ["nodemaintenance.medik8s.io", "nodemaintenance.kubevirt.io"])
def test_drain_without_force_causes_no_warnings_about_bare_pods(
    workload: Workload, client: SyncClient, group: str
) -> None:
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    maintenance = {**build_maintenance(node, drain={"force": False}), "apiVersion": f"{group}/v1beta1"}

    assert create_and_collect_warnings(client, maintenance) == []
