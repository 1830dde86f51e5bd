"""Tests for the denials and warnings that preserve etcd's quorum on control-plane nodes (NMO-23)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kube.client.api import get_or_none
from kube.client.api_errors import Denied
from kube.client.decoding import collect_warnings
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import GROUPS, KUBEVIRT
from kube.maintenance.objects import build_path
from kube.maintenance.quorum import CONTROL_PLANE_LABELS, ETCD_NAMESPACE, GUARD_BUDGET_NAMES
from kube.nodes import MAINTENANCE_LABEL, NODES_PATH, build_node_path
from kube.paths import Object
from tests.functions.admission.maintenances import build_maintenance, create_maintenance
from tests.proofs import proves
from tests.workload import Workload, build_pod

CreateControlPlane = Callable[[int], list[str]]
QUORUM_REFUSAL = "can not put master/control-plane node into maintenance at this moment, disrupting node"


@pytest.fixture
def create_control_plane(workload: Workload, client: SyncClient) -> Iterator[CreateControlPlane]:
    """Yield a function that creates nodes and gives them a control-plane label.

    After the test, the fixture deletes all NodeMaintenances and removes the control-plane labels.
    """
    names: list[str] = []

    def create_control_plane_nodes(count: int) -> list[str]:
        names.extend(workload.take_node() for _ in range(count))
        for number, name in enumerate(names):
            client.patch(build_node_path(name), {"metadata": {"labels": {CONTROL_PLANE_LABELS[number % 2]: ""}}})
        return names

    yield create_control_plane_nodes
    for group in GROUPS.values():
        for maintenance in client.list(group.path)["items"]:
            client.run(get_or_none(client.api.request("DELETE", f"{group.path}/{maintenance['metadata']['name']}")))
    for name in names:
        client.patch(build_node_path(name), {"metadata": {"labels": dict.fromkeys(CONTROL_PLANE_LABELS)}})


@pytest.fixture
def etcd_namespace(workload: Workload, client: SyncClient) -> Iterator[None]:
    """Create OpenShift's etcd namespace, and delete its PodDisruptionBudgets and pods after the test."""
    if client.run(get_or_none(client.api.get(f"/api/v1/namespaces/{ETCD_NAMESPACE}"))) is None:
        client.create("/api/v1/namespaces", {"metadata": {"name": ETCD_NAMESPACE}})
    workload.wait_for_object(
        f"/api/v1/namespaces/{ETCD_NAMESPACE}/serviceaccounts/default", lambda account: account is not None
    )
    yield
    for kind in (
        f"/apis/policy/v1/namespaces/{ETCD_NAMESPACE}/poddisruptionbudgets",
        f"/api/v1/namespaces/{ETCD_NAMESPACE}/pods",
    ):
        client.run(client.api.request("DELETE", kind, body={"gracePeriodSeconds": 0}))


def create_etcd_guard_pdb(client: SyncClient, name: str, labels: Object) -> Object:
    """Create a PDB for etcd guard pods, as OpenShift or the medik8s operator's end-to-end tests would create it."""
    path = f"/apis/policy/v1/namespaces/{ETCD_NAMESPACE}/poddisruptionbudgets"
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": labels}}
    return client.create(path, {"metadata": {"name": name}, "spec": spec})


@proves("NMO-23")
def test_maintenance_of_second_of_three_control_plane_nodes_is_denied(
    create_control_plane: CreateControlPlane, client: SyncClient
) -> None:
    first, second, _ = create_control_plane(3)
    maintenance = create_maintenance(client, build_maintenance(first))

    with pytest.raises(
        Denied, match=f"{QUORUM_REFUSAL} {second} will violate etcd quorum: 2 of 3 .* end the maintenance of"
    ):
        create_maintenance(client, build_maintenance(second, KUBEVIRT))

    client.delete(build_path(maintenance), uid=maintenance["metadata"]["uid"])
    create_maintenance(client, build_maintenance(second, KUBEVIRT))


@proves("NMO-23", "NMO-27a")
def test_maintenance_with_lost_lease_counts_as_disruption_until_node_is_restored(
    create_control_plane: CreateControlPlane, client: SyncClient
) -> None:
    first, second, _ = create_control_plane(3)
    maintenance = create_maintenance(client, build_maintenance(first))
    client.patch(f"{build_path(maintenance)}/status", {"status": {"errorOnLeaseCount": 4}})
    client.patch(build_node_path(first), {"metadata": {"labels": {MAINTENANCE_LABEL: maintenance["metadata"]["uid"]}}})

    with pytest.raises(Denied, match=QUORUM_REFUSAL):
        create_maintenance(client, build_maintenance(second))

    client.patch(build_node_path(first), {"metadata": {"labels": {MAINTENANCE_LABEL: None}}})
    create_maintenance(client, build_maintenance(second))


@proves("NMO-23")
@pytest.mark.parametrize("name", GUARD_BUDGET_NAMES)
def test_etcd_guard_pdb_without_pods_is_ignored(
    create_control_plane: CreateControlPlane, client: SyncClient, etcd_namespace: None, name: str
) -> None:
    """Check that `validate` counts control-plane nodes if the etcd guard PDB selects no pods.

    The medik8s operator's end-to-end tests create a PDB with `maxUnavailable: 0` that selects no pods.
    """
    create_etcd_guard_pdb(client, name, {"app": "fake-etcd-quorum-guard"})
    first, second, _ = create_control_plane(3)

    create_maintenance(client, build_maintenance(first))
    with pytest.raises(Denied, match=QUORUM_REFUSAL):
        create_maintenance(client, build_maintenance(second))


@proves("NMO-23")
@pytest.mark.parametrize("name", GUARD_BUDGET_NAMES)
def test_readiness_of_etcd_guard_pods_decides_which_node_is_denied(
    create_control_plane: CreateControlPlane, client: SyncClient, etcd_namespace: None, workload: Workload, name: str
) -> None:
    first, second, _ = create_control_plane(3)
    workload.create_pods(ETCD_NAMESPACE, [build_pod(first, "guard-1", labels={"app": "guard"})])
    create_etcd_guard_pdb(client, name, {"app": "guard"})

    with pytest.raises(Denied, match=f"budget {ETCD_NAMESPACE}/{name} allows no disruption"):
        create_maintenance(client, build_maintenance(first))
    # A control-plane node without an etcd guard pod counts as already disrupted.
    create_maintenance(client, build_maintenance(second))


@proves("NMO-23")
def test_unready_control_plane_node_may_be_maintained(
    create_control_plane: CreateControlPlane, client: SyncClient
) -> None:
    unready_node = {"metadata": {"name": "control-plane-down", "labels": {CONTROL_PLANE_LABELS[0]: ""}}}
    client.create(NODES_PATH, unready_node)  # No simulated kubelet runs for this node, so the node never becomes Ready.
    ready_node, _ = create_control_plane(2)
    try:
        create_maintenance(client, build_maintenance("control-plane-down"))
        with pytest.raises(Denied, match="repair control-plane-down first"):
            create_maintenance(client, build_maintenance(ready_node))
    finally:
        client.run(client.api.request("DELETE", build_node_path("control-plane-down")))


@proves("NMO-23")
def test_maintenance_of_only_control_plane_node_causes_warning(
    create_control_plane: CreateControlPlane, client: SyncClient
) -> None:
    (node,) = create_control_plane(1)

    with collect_warnings() as warnings:
        create_maintenance(client, build_maintenance(node))

    assert warnings[0].startswith(f"node {node} is the only control-plane node")
