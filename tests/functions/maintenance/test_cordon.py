"""Tests for `cordon` on a real API server."""

from __future__ import annotations

import itertools

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import require_data
from functions.maintenance import event_objects
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import EXCLUDE_LABEL, EXCLUDED_BEFORE_LABEL, MAINTENANCE_LABEL, UNSET_VALUE
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event
from tests.proofs import proves
from tests.workload import Workload, summarize_writes


@proves("X-1", "NMO-3")
def test_cordon_sets_unschedulable_and_labels(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-3, X-1, OSV-5: `cordon` sets `spec.unschedulable` and the product's labels, and emits `node.cordoned`."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    begun_event = functions.run_begin(maintenance)
    before, writes = workload.read_node(node), len(audit.list_writes_by())

    reply = functions.invoke("cordon", begun_event)

    after = workload.read_node(node)
    assert reply is not None
    assert (reply.get_type(), require_data(reply)["node"]) == (events.NODE_CORDONED, node)
    after["spec"].pop("taints", None)  # The controller manager adds the unschedulable taint to a cordoned node.
    assert after["spec"] == {**before["spec"], "unschedulable": True}
    labels = {
        MAINTENANCE_LABEL: maintenance["metadata"]["uid"],
        EXCLUDED_BEFORE_LABEL: UNSET_VALUE,
        EXCLUDE_LABEL: "true",
    }
    assert after["metadata"]["labels"] == {**before["metadata"]["labels"], **labels}
    writes_of_cordon = summarize_writes(audit.list_writes_by()[writes:])
    assert [(verb, kind) for verb, kind, _ in writes_of_cordon] == [("patch", "nodes")]
    assert "SchedulingDisabled" in workload.local_cluster.kubectl("get", "node", node).stdout


def test_cordon_replies_to_redelivered_event_without_write(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """X-2: `cordon` replies to a redelivered event, but writes nothing."""
    node = workload.take_node()
    begun_event = functions.run_begin(workload.create_maintenance(node))
    functions.invoke("cordon", begun_event)
    writes = len(audit.list_writes_by())

    reply = functions.invoke("cordon", begun_event)

    assert reply is not None
    assert len(audit.list_writes_by()) == writes


def test_cordoned_node_is_only_labelled(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-3: on a node that is already cordoned, `cordon` writes only the labels, and only once."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    begun_event = functions.run_begin(maintenance)
    workload.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    writes = len(audit.list_writes_by())

    replies = [functions.invoke("cordon", begun_event), functions.invoke("cordon", begun_event)]

    assert [reply and reply.get_type() for reply in replies] == [events.NODE_CORDONED, events.NODE_CORDONED]
    assert [(verb, kind) for verb, kind, _ in summarize_writes(audit.list_writes_by()[writes:])] == [("patch", "nodes")]
    assert workload.read_node(node)["metadata"]["labels"][MAINTENANCE_LABEL] == maintenance["metadata"]["uid"]


@proves("NMO-17")
@pytest.mark.parametrize("is_cordoned_by_hand", [False, True], ids=["schedulable", "cordoned by hand"])
def test_cordon_logs_only_cordons_of_schedulable_nodes(
    functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture, is_cordoned_by_hand: bool
) -> None:
    """NMO-17: `cordon` logs the cordon of a schedulable node once, and logs nothing for a node cordoned by hand."""
    node = workload.take_node()
    begun_event = functions.run_begin(workload.create_maintenance(node))
    if is_cordoned_by_hand:
        workload.local_cluster.kubectl("cordon", node)
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.invoke("cordon", begun_event)
        functions.invoke("cordon", begun_event)

    assert [record.message for record in caplog.records] == ([] if is_cordoned_by_hand else [f"cordon Node: {node}"])


def test_cordon_overwrites_maintenance_label_of_other_writer(functions: Functions, workload: Workload) -> None:
    """Design rule 10: `cordon` overwrites the value of the maintenance label that another writer set."""
    node = workload.take_node()
    workload.local_cluster.kubectl("label", "node", node, f"{MAINTENANCE_LABEL}=by-hand")
    maintenance = workload.create_maintenance(node)

    functions.run_chain(maintenance, "begin", "cordon")

    assert workload.read_node(node)["metadata"]["labels"][MAINTENANCE_LABEL] == maintenance["metadata"]["uid"]


def test_cordon_removes_leftover_drain_taint_of_other_group(functions: Functions, workload: Workload) -> None:
    """NMO-4: `cordon` removes the drain taint that a deleted maintenance of another group left on the node."""
    node = workload.take_node()
    taints = [{"key": group.drain_taint, "effect": "NoSchedule"} for group in (MEDIK8S, KUBEVIRT)]
    node_patch = {
        "metadata": {"labels": {MAINTENANCE_LABEL: "one-that-is-gone"}},
        "spec": {"taints": taints, "unschedulable": True},
    }
    workload.client.patch(f"/api/v1/nodes/{node}", node_patch)

    functions.run_chain(workload.create_maintenance(node), "begin", "cordon")

    keys = {taint["key"] for taint in workload.read_node(node)["spec"]["taints"]}
    assert (MEDIK8S.drain_taint in keys, KUBEVIRT.drain_taint in keys) == (True, False)


def test_uncordoned_node_is_cordoned_again(functions: Functions, workload: Workload) -> None:
    """NMO-3: `cordon` cordons the node again on `node.drifted`."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_chain(maintenance, "begin", "cordon")
    workload.local_cluster.kubectl("uncordon", node)

    functions.invoke("cordon", build_product_event(events.NODE_DRIFTED, maintenance))

    assert workload.read_node(node)["spec"]["unschedulable"] is True


@pytest.mark.parametrize("step", ["cordon", "taint", "evict"])
def test_steps_do_not_change_recreated_node(
    functions: Functions, workload: Workload, audit: AuditLog, step: str
) -> None:
    """NMO-20, X-2: if the node was recreated, each step emits `maintenance.step_failed` and writes nothing."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    event = dict(zip(("cordon", "taint", "evict"), run_and_collect_events(functions, maintenance), strict=True))[step]
    workload.local_cluster.kubectl("uncordon", node)
    # The API server does not serve this API version, so the garbage collector cannot look up the owner.
    owner = {"apiVersion": "example.com/v1", "kind": "Node", "name": node, "uid": "of-the-old-node"}
    workload.client.patch(m.build_path(maintenance), {"metadata": {"ownerReferences": [owner]}})
    writes = len(audit.list_writes_by())

    reply = functions.invoke(step, event)

    assert reply is not None
    error = f'node "{node}" was deleted and created again since the maintenance began'
    assert (reply.get_type(), require_data(reply)["error"]) == (events.MAINTENANCE_STEP_FAILED, error)
    assert len(audit.list_writes_by()) == writes


def run_and_collect_events(functions: Functions, maintenance: Object) -> list[BaseCloudEvent]:
    """Run `begin`, `cordon` and `taint`, and return the events that trigger `cordon`, `taint` and `evict`."""
    begun_event = functions.run_begin(maintenance)
    cordoned_event = functions.invoke("cordon", begun_event)
    assert cordoned_event is not None
    tainted_event = functions.invoke("taint", cordoned_event)
    assert tainted_event is not None
    return [begun_event, cordoned_event, tainted_event]


def test_cordon_fails_if_node_is_deleted(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-20: for a deleted node, `cordon` emits `maintenance.step_failed` with the node's name and writes nothing."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    begun_event = functions.run_begin(maintenance)
    # Without an owner reference, the garbage collector does not delete the maintenance.
    workload.client.patch(m.build_path(maintenance), {"metadata": {"ownerReferences": []}})
    workload.delete(f"/api/v1/nodes/{node}")
    writes = len(audit.list_writes_by())

    reply = functions.invoke("cordon", begun_event)

    assert reply is not None
    assert (reply.get_type(), require_data(reply)["error"]) == (
        events.MAINTENANCE_STEP_FAILED,
        f'nodes "{node}" not found',
    )
    assert len(audit.list_writes_by()) == writes


@pytest.mark.parametrize(
    ("step", "change"),
    [
        *itertools.product(("cordon", "taint", "evict", "status"), ("gone", "recreated", "deleting", "not-begun")),
        # `status` does not read the node name in the event.
        *itertools.product(("cordon", "taint", "evict"), ("other-node",)),
    ],
)
def test_steps_ignore_event_of_outdated_maintenance(
    functions: Functions, workload: Workload, audit: AuditLog, step: str, change: str
) -> None:
    """X-2, NMO-15: a step ignores an event of a maintenance that is gone, recreated, being deleted or not begun.

    A step also ignores an event that names a node other than the maintenance's node.
    """
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    if change != "not-begun":
        functions.run_begin(maintenance)
    event = {
        "cordon": build_product_event(events.MAINTENANCE_BEGUN, maintenance),
        "taint": build_product_event(events.NODE_CORDONED, maintenance),
        "evict": build_product_event(events.NODE_TAINTED, maintenance),
        "status": build_product_event(events.PODS_EVICTED, maintenance),
    }[step]
    if change in ("gone", "recreated"):
        workload.remove_maintenance(maintenance)
    if change == "recreated":
        workload.client.create(
            MEDIK8S.path,
            {field: maintenance[field] for field in ("apiVersion", "kind", "spec")} | _build_metadata(maintenance),
        )
    if change == "deleting":
        workload.delete(m.build_path(maintenance))
    if change == "other-node":
        other_node = workload.take_node()
        event = build_product_event(event.get_type(), {**maintenance, "spec": {"nodeName": other_node}})
    writes = len(audit.list_writes_by())

    response = functions.post(step, event)

    assert response.status_code == 204
    assert len(audit.list_writes_by()) == writes


def _build_metadata(maintenance: Object) -> Object:
    return {"metadata": {"name": maintenance["metadata"]["name"]}}
