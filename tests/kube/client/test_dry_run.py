"""Tests for the dry-run API client with a real API server and its audit log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kube.client.api import JSON_PATCH
from kube.client.sync_client import SyncClient
from kube.evictions.requests import build_eviction, build_eviction_path, build_pod_path
from kube.kubernetes_events import build_event
from kube.maintenance import kubernetes_events, leases
from kube.maintenance import objects as m
from kube.nodes import build_cordon_patch, build_node_path
from kube.paths import Object
from kube.times import parse_time
from localcluster.audit_log import AuditLog, is_dry_run
from localcluster.cluster import LocalCluster
from tests.kube.samples import make_maintenance
from tests.workload import Workload

WriteFunction = Callable[[SyncClient, Workload, str], tuple[str, Object]]
UNIQUE_ERROR_TEXT = "error text of the dry-run test"
"""Error text that no function writes, because functions may run on the same cluster."""


def _cordon_node(client: SyncClient, workload: Workload, node: str) -> tuple[str, Object]:
    return build_node_path(node), client.patch(
        build_node_path(node), build_cordon_patch(workload.read_node(node)), JSON_PATCH
    )


def _merge_node_label(client: SyncClient, workload: Workload, node: str) -> tuple[str, Object]:
    return build_node_path(node), client.patch(build_node_path(node), {"metadata": {"labels": {"a": "b"}}})


def _write_status(client: SyncClient, workload: Workload, node: str) -> tuple[str, Object]:
    maintenance = workload.create_maintenance(node)
    return m.build_path(maintenance), client.patch(
        f"{m.build_path(maintenance)}/status", {"status": {"lastError": UNIQUE_ERROR_TEXT}}
    )


def _delete_maintenance(client: SyncClient, workload: Workload, node: str) -> tuple[str, Object]:
    maintenance = workload.create_maintenance(node)
    return m.build_path(maintenance), client.delete(m.build_path(maintenance), uid=maintenance["metadata"]["uid"])


def _evict_pod(client: SyncClient, workload: Workload, node: str) -> tuple[str, Object]:
    (pod,) = workload.create_bare_pods(node, "a")
    return build_pod_path(pod), client.create(build_eviction_path(pod), build_eviction(pod))


WRITE_FUNCTIONS = {
    "JSON patch": _cordon_node,
    "merge patch": _merge_node_label,
    "status": _write_status,
    "delete": _delete_maintenance,
    "eviction": _evict_pod,
}


@pytest.fixture
def workload(installed_cluster: LocalCluster, admin_client: SyncClient) -> Workload:
    """Return a `Workload` that creates its pods in a new namespace."""
    return Workload(installed_cluster, admin_client)


@pytest.mark.parametrize("write_object", WRITE_FUNCTIONS.values(), ids=WRITE_FUNCTIONS)
def test_dry_run_write_does_not_change_object(
    workload: Workload, admin_client: SyncClient, write_object: WriteFunction
) -> None:
    """X-2: a dry-run write succeeds, leaves the object unchanged, and is logged as a dry run in the audit log."""
    node = workload.take_node()
    audit = AuditLog(workload.local_cluster.audit_log)

    path, _ = write_object(admin_client.with_dry_run(), workload, node)

    current = workload.client.get(path)
    audit_entry = [entry for entry in audit.list_writes_by("admin") if entry["requestURI"].startswith(path)][-1]
    assert is_dry_run(audit_entry)
    assert audit_entry["responseStatus"]["code"] in (200, 201)
    assert not current["metadata"].get("deletionTimestamp")
    assert not current["spec"].get("unschedulable")
    assert "a" not in (current["metadata"].get("labels") or {})
    assert (current.get("status") or {}).get("lastError") != UNIQUE_ERROR_TEXT


@pytest.mark.parametrize("path", [leases.LEASES_PATH, kubernetes_events.EVENTS_PATH], ids=["lease", "event"])
def test_dry_run_creation_stores_no_object(workload: Workload, admin_client: SyncClient, path: str) -> None:
    """X-2, NMO-27, OSV-12: Leases and Events that a dry run creates are not stored."""
    now, node = parse_time("2026-01-02T03:04:05Z"), workload.take_node()
    # The maintenance is not created in the cluster, because a function that runs there would acquire the node's Lease.
    maintenance = make_maintenance()
    lease = leases.build_lease(node, maintenance, now)
    body = (
        lease
        if path == leases.LEASES_PATH
        else build_event(kubernetes_events.build_node_kubernetes_event(node, "Test", maintenance, "text"), now)
    )

    created = admin_client.with_dry_run().create(path, body)

    names = {stored["metadata"]["name"] for stored in admin_client.list(path)["items"]}
    assert created["metadata"]["name"] == body["metadata"]["name"]
    assert created["metadata"]["name"] not in names


def test_pdb_blocks_dry_run_eviction(workload: Workload, admin_client: SyncClient) -> None:
    """NMO-6: a PDB blocks a dry-run eviction like any other eviction, and a dry-run client sends reads unchanged."""
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "held", labels={"app": "db"})
    workload.create_budget("keep", {"app": "db"}, 1, expected_healthy=1)
    dry_run_client = admin_client.with_dry_run()

    with pytest.raises(Exception, match="disruption budget") as error:
        dry_run_client.create(build_eviction_path(pod), build_eviction(pod))

    assert getattr(error.value, "status", 0) == 429
    assert dry_run_client.get(build_pod_path(pod))["metadata"]["uid"] == pod["metadata"]["uid"]
