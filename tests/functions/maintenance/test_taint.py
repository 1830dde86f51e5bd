"""Tests for `taint` on a real API server."""

from __future__ import annotations

import threading

import pytest

from eventing import events
from functions.maintenance import event_objects
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import GROUPS, KUBEVIRT, ApiGroup
from kube.nodes import UNSCHEDULABLE_TAINT
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from tests.functions.conftest import Functions
from tests.proofs import proves
from tests.workload import Workload, summarize_writes

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])


def read_taints(workload: Workload, node: str) -> list[tuple[str, str, str]]:
    """Return the node's taints in order, as (key, value, effect)."""
    taints = workload.read_node(node)["spec"].get("taints") or []
    return [(taint["key"], taint.get("value", ""), taint["effect"]) for taint in taints]


@proves("X-1", "NMO-4", "KNM-4", "C3")
@every_group
def test_taint_adds_taints_of_api_group(
    functions: Functions, workload: Workload, audit: AuditLog, group: ApiGroup
) -> None:
    """NMO-4, KNM-4, DRN-13, X-1: `taint` adds the API group's drain taint and the unschedulable taint in one patch."""
    node = workload.take_node()
    cordoned_event = functions.run_chain(workload.create_maintenance(node, group), "begin", "cordon")
    writes = len(audit.list_writes_by())

    reply = functions.invoke("taint", cordoned_event)

    assert reply is not None
    assert reply.get_type() == events.NODE_TAINTED
    assert sorted(read_taints(workload, node)) == sorted(
        [(group.drain_taint, "", "NoSchedule"), (UNSCHEDULABLE_TAINT, "", "NoSchedule")]
    )
    assert summarize_writes(audit.list_writes_by()[writes:]) == [("patch", "nodes", node)]


def test_taint_writes_nothing_for_redelivered_event(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: `taint` writes nothing for a redelivered event, and returns the same reply."""
    node = workload.take_node()
    cordoned_event = functions.run_chain(workload.create_maintenance(node), "begin", "cordon")
    first_event = functions.invoke("taint", cordoned_event)
    writes = len(audit.list_writes_by())

    second_event = functions.invoke("taint", cordoned_event)

    assert first_event is not None
    assert second_event is not None
    assert second_event.get_id() == first_event.get_id()
    assert len(audit.list_writes_by()) == writes


@proves("NMO-4", "KNM-4", "C4")
def test_taint_does_not_change_existing_drain_taint_with_value(functions: Functions, workload: Workload) -> None:
    """NMO-4, KNM-4, C4: `taint` does not change an existing drain taint that has a value."""
    node = workload.take_node()
    workload.local_cluster.kubectl("taint", "node", node, "kubevirt.io/drain=draining:NoSchedule")

    functions.run_until_tainted(workload.create_maintenance(node, KUBEVIRT))

    assert sorted(read_taints(workload, node)) == [
        ("kubevirt.io/drain", "draining", "NoSchedule"),
        (UNSCHEDULABLE_TAINT, "", "NoSchedule"),
    ]


@proves("NMO-4")
def test_taint_keeps_order_of_existing_taints(functions: Functions, workload: Workload) -> None:
    """NMO-4: `taint` appends taints without reordering existing taints, even a drain taint with another effect."""
    node = workload.take_node()
    foreign_taints = [
        "example.com/b=2:NoSchedule",
        "example.com/a=1:PreferNoSchedule",
        "medik8s.io/drain:PreferNoSchedule",
    ]
    workload.local_cluster.kubectl("taint", "node", node, *foreign_taints)
    before = read_taints(workload, node)

    functions.run_until_tainted(workload.create_maintenance(node))

    after = read_taints(workload, node)
    assert len(before) == 3
    assert after[:3] == before
    assert sorted(after[3:]) == [("medik8s.io/drain", "", "NoSchedule"), (UNSCHEDULABLE_TAINT, "", "NoSchedule")]


@proves("X-6", "NMO-4")
def test_concurrently_added_taints_are_kept(
    functions: Functions, workload: Workload, idle_cluster: LocalCluster
) -> None:
    """NMO-4, X-6: no taint is lost if another client adds taints to the same node concurrently."""
    node = workload.take_node()
    cordoned_event = functions.run_chain(workload.create_maintenance(node), "begin", "cordon")
    client = SyncClient(str(idle_cluster.kubeconfig))
    started = threading.Event()

    def add_taints_of_other_client() -> None:
        for number in range(12):
            workload.local_cluster.kubectl("taint", "node", node, f"example.com/{number}:NoSchedule")
            started.set()

    thread = threading.Thread(target=add_taints_of_other_client)
    thread.start()
    started.wait()
    statuses = {functions.post("taint", cordoned_event).status_code for _ in range(20)}
    thread.join()
    functions.invoke("taint", cordoned_event)
    client.close()

    keys = [key for key, _, _ in read_taints(workload, node)]
    assert statuses <= {200, 503}
    assert sorted(keys) == sorted(
        [*(f"example.com/{number}" for number in range(12)), "medik8s.io/drain", UNSCHEDULABLE_TAINT]
    )


@proves("DRN-13", "NMO-17", "NMO-17a")
@every_group
def test_taint_logs_added_taints_once(
    functions: Functions, workload: Workload, group: ApiGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-17, NMO-17a, DRN-13: `taint` logs the added taints once, as JSON in the order that DRN-13 requires."""
    node, key = workload.take_node(), group.drain_taint
    cordoned_event = functions.run_chain(workload.create_maintenance(node, group), "begin", "cordon")
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.invoke("taint", cordoned_event)
        functions.invoke("taint", cordoned_event)

    added = ",".join(
        f'{{"key":"{taint_key}","effect":"NoSchedule"}}' for taint_key in ("node.kubernetes.io/unschedulable", key)
    )
    assert [record.message for record in caplog.records] == [
        f"Maintenance taints will be added to node {node}",
        f"Taints: [{added}] will be added to node {node}",
        f"Applying {key} taint add on Node: {node}",
        f"Patching taints on Node: {node}",
    ]
