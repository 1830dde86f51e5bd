"""Tests of `cordon` on a real API server."""

from __future__ import annotations

import itertools

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import data_of
from functions.maintenance import event_objects
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import BEFORE, EXCLUDED, LABEL, UNSET
from kube.paths import Object
from tests.functions.conftest import Functions
from tests.functions.event_builders import said
from tests.proofs import proves
from tests.workload import Audit, Workload, written


@proves("X-1", "NMO-3")
def test_the_node_takes_no_new_pods(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-3, X-1, OSV-5: `cordon` sets spec.unschedulable and our labels, and emits `node.cordoned`."""
    node = work.node()
    item = work.maintenance(node)
    begun = functions.begin(item)
    before, writes = work.read_node(node), len(audit.writes_by())

    reply = functions.answer("cordon", begun)

    after = work.read_node(node)
    assert reply is not None
    assert (reply.get_type(), data_of(reply)["node"]) == (events.NODE_CORDONED, node)
    after["spec"].pop("taints", None)  # the controller manager adds its own as soon as it sees the cordon
    assert after["spec"] == {**before["spec"], "unschedulable": True}
    labels = {LABEL: item["metadata"]["uid"], BEFORE: UNSET, EXCLUDED: "true"}
    assert after["metadata"]["labels"] == {**before["metadata"]["labels"], **labels}
    ours = written(audit.writes_by()[writes:])
    assert [(verb, kind) for verb, kind, _ in ours] == [("patch", "nodes")]
    assert "SchedulingDisabled" in work.local.kubectl("get", "node", node).stdout


def test_told_twice_it_is_done_once(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: a redelivered event writes nothing and gets a reply."""
    node = work.node()
    begun = functions.begin(work.maintenance(node))
    functions.answer("cordon", begun)
    writes = len(audit.writes_by())

    reply = functions.answer("cordon", begun)

    assert reply is not None
    assert len(audit.writes_by()) == writes


def test_a_node_that_was_cordoned_before_is_only_labelled(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-3: on a node that is cordoned already, `cordon` writes only the labels, and only once."""
    node = work.node()
    item = work.maintenance(node)
    begun = functions.begin(item)
    work.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    writes = len(audit.writes_by())

    replies = [functions.answer("cordon", begun), functions.answer("cordon", begun)]

    assert [reply and reply.get_type() for reply in replies] == [events.NODE_CORDONED, events.NODE_CORDONED]
    assert [(verb, kind) for verb, kind, _ in written(audit.writes_by()[writes:])] == [("patch", "nodes")]
    assert work.read_node(node)["metadata"]["labels"][LABEL] == item["metadata"]["uid"]


@proves("NMO-17")
@pytest.mark.parametrize("by_hand", [False, True], ids=["open", "cordoned by hand"])
def test_the_cordon_is_in_the_log_where_it_is_ours(
    functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture, by_hand: bool
) -> None:
    """NMO-17: `cordon` logs its own cordon once, and logs nothing for a node that was cordoned by hand."""
    node = work.node()
    begun = functions.begin(work.maintenance(node))
    if by_hand:
        work.local.kubectl("cordon", node)
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.answer("cordon", begun)
        functions.answer("cordon", begun)

    assert [record.message for record in caplog.records] == ([] if by_hand else [f"cordon Node: {node}"])


def test_a_label_that_names_another_is_ours_to_write(functions: Functions, work: Workload) -> None:
    """Rule 10: `cordon` overwrites a label value that another writer set."""
    node = work.node()
    work.local.kubectl("label", "node", node, f"{LABEL}=by-hand")
    item = work.maintenance(node)

    functions.chain(item, "begin", "cordon")

    assert work.read_node(node)["metadata"]["labels"][LABEL] == item["metadata"]["uid"]


def test_the_drain_taint_of_a_group_that_left_goes(functions: Functions, work: Workload) -> None:
    """NMO-4: `cordon` removes the drain taint that a deleted maintenance of another group left on the node."""
    node = work.node()
    taints = [{"key": group.drain_taint, "effect": "NoSchedule"} for group in (MEDIK8S, KUBEVIRT)]
    labelled = {"metadata": {"labels": {LABEL: "one-that-is-gone"}}, "spec": {"taints": taints, "unschedulable": True}}
    work.admin.patch(f"/api/v1/nodes/{node}", labelled)

    functions.chain(work.maintenance(node), "begin", "cordon")

    keys = {taint["key"] for taint in work.read_node(node)["spec"]["taints"]}
    assert (MEDIK8S.drain_taint in keys, KUBEVIRT.drain_taint in keys) == (True, False)


def test_an_uncordoned_node_is_cordoned_again(functions: Functions, work: Workload) -> None:
    """NMO-3: `cordon` cordons the node again on `node.drifted`."""
    node = work.node()
    item = work.maintenance(node)
    functions.chain(item, "begin", "cordon")
    work.local.kubectl("uncordon", node)

    functions.answer("cordon", said(events.NODE_DRIFTED, item))

    assert work.read_node(node)["spec"]["unschedulable"] is True


@pytest.mark.parametrize("step", ["cordon", "taint", "evict"])
def test_another_node_of_the_same_name_is_left_alone(
    functions: Functions, work: Workload, audit: Audit, step: str
) -> None:
    """NMO-20, X-2: for a new node with the old name, the step emits `maintenance.failed` and writes nothing."""
    node = work.node()
    item = work.maintenance(node)
    event = dict(zip(("cordon", "taint", "evict"), prepared(functions, item), strict=True))[step]
    work.local.kubectl("uncordon", node)
    # this API version is not served, so the garbage collector cannot find out that the owner is gone
    owner = {"apiVersion": "example.com/v1", "kind": "Node", "name": node, "uid": "of-the-old-node"}
    work.admin.patch(m.path(item), {"metadata": {"ownerReferences": [owner]}})
    writes = len(audit.writes_by())

    reply = functions.answer(step, event)

    assert reply is not None
    error = f'node "{node}" is another one than the maintenance began on'
    assert (reply.get_type(), data_of(reply)["error"]) == (events.MAINTENANCE_FAILED, error)
    assert len(audit.writes_by()) == writes


def prepared(functions: Functions, item: Object) -> list[BaseCloudEvent]:
    """Run `begin`, `cordon` and `taint`, and return the events that trigger `cordon`, `taint` and `evict`."""
    begun = functions.begin(item)
    cordoned = functions.answer("cordon", begun)
    assert cordoned is not None
    tainted = functions.answer("taint", cordoned)
    assert tainted is not None
    return [begun, cordoned, tainted]


def test_the_node_is_gone(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-20: for a deleted node, `cordon` emits `maintenance.failed` with the node's name and writes nothing."""
    node = work.node()
    item = work.maintenance(node)
    begun = functions.begin(item)
    work.admin.patch(m.path(item), {"metadata": {"ownerReferences": []}})  # prevents its garbage collection
    work.delete(f"/api/v1/nodes/{node}")
    writes = len(audit.writes_by())

    reply = functions.answer("cordon", begun)

    assert reply is not None
    assert (reply.get_type(), data_of(reply)["error"]) == (events.MAINTENANCE_FAILED, f'nodes "{node}" not found')
    assert len(audit.writes_by()) == writes


@pytest.mark.parametrize(
    ("step", "what"),
    [
        *itertools.product(("cordon", "taint", "evict", "status"), ("gone", "made-anew", "deleting", "not-begun")),
        *itertools.product(("cordon", "taint", "evict"), ("other-node",)),  # status reads the name from the object
    ],
)
def test_an_event_that_does_not_fit_the_live_object_does_nothing(
    functions: Functions, work: Workload, audit: Audit, step: str, what: str
) -> None:
    """X-2, NMO-15: a step ignores an event whose object is gone, replaced, deleted, not begun or for another node."""
    node = work.node()
    item = work.maintenance(node)
    if what != "not-begun":
        functions.begin(item)
    event = {
        "cordon": said(events.MAINTENANCE_BEGUN, item),
        "taint": said(events.NODE_CORDONED, item),
        "evict": said(events.NODE_TAINTED, item),
        "status": said(events.PODS_EVICTED, item),
    }[step]
    if what in ("gone", "made-anew"):
        work.vanish(item)
    if what == "made-anew":
        work.admin.create(MEDIK8S.path, {k: item[k] for k in ("apiVersion", "kind", "spec")} | _named(item))
    if what == "deleting":
        work.delete(m.path(item))
    if what == "other-node":
        other = work.node()
        event = said(event.get_type(), {**item, "spec": {"nodeName": other}})
    writes = len(audit.writes_by())

    response = functions.post(step, event)

    assert response.status_code == 204
    assert len(audit.writes_by()) == writes


def _named(item: Object) -> Object:
    return {"metadata": {"name": item["metadata"]["name"]}}
