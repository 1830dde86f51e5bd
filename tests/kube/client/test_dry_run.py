"""Tests of the dry-run API client against a real API server and its audit log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kube.client.api import JSON_PATCH
from kube.client.sync_client import Cluster
from kube.evictions import eviction_of, eviction_path, pod_path
from kube.maintenance import kubernetes_events, leases
from kube.maintenance import objects as m
from kube.nodes import cordon_patch, node_path
from kube.paths import Object
from kube.times import moment
from localcluster.cluster import LocalCluster
from tests.kube.samples import maintenance
from tests.workload import Workload, audit, is_dry

Write = Callable[[Cluster, Workload, str], tuple[str, Object]]
UNTRUE = "nothing that happened"
"""A text that no function writes, in case one runs on this cluster."""


def _cordon(door: Cluster, work: Workload, node: str) -> tuple[str, Object]:
    return node_path(node), door.patch(node_path(node), cordon_patch(work.read_node(node)), JSON_PATCH)


def _merge(door: Cluster, work: Workload, node: str) -> tuple[str, Object]:
    return node_path(node), door.patch(node_path(node), {"metadata": {"labels": {"a": "b"}}})


def _status(door: Cluster, work: Workload, node: str) -> tuple[str, Object]:
    item = work.maintenance(node)
    return m.path(item), door.patch(f"{m.path(item)}/status", {"status": {"lastError": UNTRUE}})


def _delete(door: Cluster, work: Workload, node: str) -> tuple[str, Object]:
    item = work.maintenance(node)
    return m.path(item), door.delete(m.path(item), uid=item["metadata"]["uid"])


def _evict(door: Cluster, work: Workload, node: str) -> tuple[str, Object]:
    (pod,) = work.pods(node, "a")
    return pod_path(pod), door.create(eviction_path(pod), eviction_of(pod))


WRITES = {"JSON patch": _cordon, "merge patch": _merge, "status": _status, "delete": _delete, "eviction": _evict}


@pytest.fixture
def work(installed: LocalCluster, admin: Cluster) -> Workload:
    """Return a workload in a namespace of its own."""
    return Workload(installed, admin)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_is_answered_and_not_kept(work: Workload, admin: Cluster, write: Write) -> None:
    """X-2: a dry-run write succeeds, leaves the object unchanged, and is a dry run in the audit log."""
    node = work.node()
    seen = audit(work.local)

    path, _ = write(admin.dry_run(), work, node)

    found = work.admin.get(path)
    written = [entry for entry in seen.writes_by("admin") if entry["requestURI"].startswith(path)][-1]
    assert is_dry(written)
    assert written["responseStatus"]["code"] in (200, 201)
    assert not found["metadata"].get("deletionTimestamp")
    assert not found["spec"].get("unschedulable")
    assert "a" not in (found["metadata"].get("labels") or {})
    assert (found.get("status") or {}).get("lastError") != UNTRUE


@pytest.mark.parametrize("path", [leases.LEASES, kubernetes_events.EVENTS], ids=["lease", "event"])
def test_a_new_object_is_answered_and_not_kept(work: Workload, admin: Cluster, path: str) -> None:
    """X-2, NMO-27, OSV-12: Leases and Events created in a dry run are not stored either."""
    now, node = moment("2026-01-02T03:04:05Z"), work.node()
    item = maintenance()  # nonexistent, because functions may run on this cluster and would acquire its Lease
    lease = leases.lease_of(node, item, now)
    wanted = lease if path == leases.LEASES else kubernetes_events.node_event(node, "Test", "text", item, now)

    made = admin.dry_run().create(path, wanted)

    names = {each["metadata"]["name"] for each in admin.list(path)["items"]}
    assert made["metadata"]["name"] == wanted["metadata"]["name"]
    assert made["metadata"]["name"] not in names


def test_what_would_be_refused_is_refused(work: Workload, admin: Cluster) -> None:
    """NMO-6: a dry-run eviction is refused by its budget as a real one is; reads work as usual."""
    node = work.node()
    (pod,) = work.pods(node, "held", labels={"app": "db"})
    work.budget("keep", {"app": "db"}, 1, counted=1)
    dry = admin.dry_run()

    with pytest.raises(Exception, match="disruption budget") as refused:
        dry.create(eviction_path(pod), eviction_of(pod))

    assert getattr(refused.value, "status", 0) == 429
    assert dry.get(pod_path(pod))["metadata"]["uid"] == pod["metadata"]["uid"]
