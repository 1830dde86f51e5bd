"""Tests of `guard` on a real API server."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from functions.event_data import data_of
from functions.installs import CLAIMS
from functions.maintenance.guard import AGAIN, guard
from kube.maintenance import objects as m
from kube.maintenance.kubernetes_events import EVENTS
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, Group
from kube.maintenance.lookup import by_age
from kube.nodes import LABEL
from kube.paths import Object
from kube.times import timestamp
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import node_deleted, node_updated, said, updated
from tests.functions.request_hooks import before, lists_of, requests_of
from tests.proofs import proves
from tests.workload import Audit, Workload, written


def maintained(functions: Functions, work: Workload, node: str, group: Group = MEDIK8S) -> Object:
    """Create a maintenance whose node is cordoned and tainted, and whose status reports that."""
    item = work.maintenance(node, group)
    functions.prepare(item)
    functions.answer("status", said(events.PODS_EVICTED, item))
    item = work.again(item)
    assert m.condition(item, "Cordoned")["status"] == "True"
    return item


def test_an_uncordoned_node_is_told_and_warned_of(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-3, NMO-5: for a node uncordoned by hand, `guard` emits `node.drifted` and records a Warning."""
    node = work.node()
    item = maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    writes = len(audit.writes_by())

    reply = functions.answer("guard", node_updated(work.read_node(node)))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert data_of(reply)["maintenance"] == events.Reference.of(item).as_data()
    assert [(verb, kind) for verb, kind, _ in written(audit.writes_by()[writes:])] == [("create", "events")]
    described = work.local.kubectl("describe", "node", node).stdout
    assert f"node {node} was uncordoned or untainted during maintenance {item['metadata']['name']}" in described
    (warned,) = work.admin.list(EVENTS, fields=f"involvedObject.name={node},reason={AGAIN}")["items"]
    assert warned["type"] == "Warning"


@proves("X-2")
def test_a_hint_that_comes_during_the_look_loses_no_drift(functions: Functions, work: Workload) -> None:
    """Drift that the first pass found is emitted even if a hint causes a second pass.

    The second pass finds that it is recorded already, and emits nothing itself.
    """
    node = work.node()
    item = maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    hint = node_updated(work.read_node(node))

    with before(functions.clusters["guard"], "POST", EVENTS, lambda: functions.post("guard", hint)):
        reply = functions.answer("guard", node_updated(work.read_node(node)))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert data_of(reply)["maintenance"] == events.Reference.of(item).as_data()


@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
def test_a_missing_taint_is_told(functions: Functions, work: Workload, group: Group) -> None:
    """NMO-4, X-7: `guard` emits `node.drifted` if the drain taint was removed by hand, for every API group."""
    node = work.node()
    item = maintained(functions, work, node, group)
    work.local.kubectl("taint", "node", node, f"{group.drain_taint}:NoSchedule-")

    reply = functions.answer("guard", node_updated(work.read_node(node)))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert data_of(reply)["maintenance"] == events.Reference.of(item).as_data()


@pytest.mark.parametrize("label", ["of-an-earlier-one", ""])
def test_a_drift_is_told_whomever_the_label_names(functions: Functions, work: Workload, label: str) -> None:
    """Rule 10: `guard` finds the node's maintenance even if the label has another value or none."""
    node = work.node()
    item = maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    work.local.kubectl("label", "--overwrite", "node", node, f"{LABEL}={label}")

    reply = functions.answer("guard", node_updated(work.read_node(node)))

    assert reply is not None
    assert data_of(reply)["maintenance"] == events.Reference.of(item).as_data()


def test_between_cordon_and_taint_one_list_suffices(functions: Functions, work: Workload) -> None:
    """Rule 10: between cordon and taint, `guard` sends only one list request.

    In each drain an update arrives then, because the controller manager adds its own taint. The test caches that this
    install is active, which is otherwise read once a minute.
    """
    CLAIMS.confirm(functions.clusters["guard"])
    node = work.node()
    functions.chain(work.maintenance(node), "begin", "cordon")
    hint = node_updated(work.read_node(node))

    with requests_of(functions.clusters["guard"].api) as counted:
        assert functions.answer("guard", hint) is None

    assert counted == {f"GET {MEDIK8S.path}": 1}


def test_a_label_taken_off_comes_back(functions: Functions, work: Workload) -> None:
    """Rule 10: `guard` treats a removed label, which arrives as a deletion of the node, as drift."""
    node = work.node()
    item = maintained(functions, work, node)
    before = work.read_node(node)
    work.local.kubectl("label", "node", node, f"{LABEL}-")

    reply = functions.answer("guard", node_deleted(before))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert f"node {node} was unlabelled during" in data_of(reply)["message"]
    cordoned = functions.answer("cordon", reply)
    assert cordoned is not None
    functions.answer("taint", cordoned)
    assert work.read_node(node)["metadata"]["labels"][LABEL] == item["metadata"]["uid"]
    assert functions.answer("guard", node_updated(work.read_node(node))) is None
    assert not m.is_deleting(work.again(item))


def test_what_is_undone_again_and_again_is_left_to_the_tick(functions: Functions, work: Workload, audit: Audit) -> None:
    """Rule 9: `guard` answers repeated drift once and then backs off for as long as the drift has lasted.

    Another controller may remove the label each time. During the backoff the drift is left to the tick.
    """
    node = work.node()
    item = maintained(functions, work, node)
    labelled = work.read_node(node)
    work.local.kubectl("label", "node", node, f"{LABEL}-")
    writes = len(audit.writes_by())

    first = functions.answer("guard", node_deleted(labelled))
    again = [functions.answer("guard", node_deleted(labelled)) for _ in range(5)]
    quiet = len(audit.writes_by()) - writes
    aged(work, node, first=80, last=11)
    later = functions.answer("guard", node_deleted(labelled))

    assert first is not None
    assert again == [None] * 5
    assert quiet == 1
    assert later is None  # drift has lasted for 69 seconds, so the backoff is 60 seconds
    aged(work, node, first=21, last=11)
    assert functions.answer("guard", node_deleted(labelled)) is not None
    assert not m.is_deleting(work.again(item))


@pytest.mark.slow
@proves("X-6")
def test_what_cannot_be_counted_is_left_to_the_tick(
    spoiled: Functions, faults: Faults, functions: Functions, work: Workload
) -> None:
    """Rule 9: `guard` emits nothing if it cannot write the Event that counts the repeated drift."""
    node = work.node()
    maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    faults.spoil(lambda request: Fault(403, "exceeded quota") if request.startswith("create events") else None)

    refused = spoiled.answer("guard", node_updated(work.read_node(node)))
    faults.speak_again()

    assert refused is None
    assert functions.answer("guard", node_updated(work.read_node(node))) is not None


def two_of(work: Workload, node: str) -> list[Object]:
    """Create two maintenances of a node and return them in list order: by age in seconds, then by uid."""
    return list(by_age([work.maintenance(node), work.maintenance(node)]))


def begun_besides(work: Workload, item: Object, *, cordoned: bool) -> None:
    """Mark a maintenance as begun although another one has the node; report it as cordoned if `cordoned` is set."""
    node = work.read_node(item["spec"]["nodeName"])
    work.admin.patch(m.path(item), m.begin_patch(work.again(item), node, {"totalpods": 0, "evictionPods": 0}))
    if cordoned:
        now = timestamp(datetime.now(timezone.utc))
        shown = {"type": "Cordoned", "status": "True", "reason": "Cordoned", "message": "m", "lastTransitionTime": now}
        work.admin.patch(f"{m.path(item)}/status", {"status": {"conditions": [shown]}})
    version = work.again(item)["metadata"]["resourceVersion"]
    work.admin.run(work.admin.api.list(m.group(item).path, version=version))  # waits until the cache has it


@pytest.mark.parametrize("why", ["not cordoned yet", "told a moment ago"])
def test_one_that_needs_no_answer_keeps_none_from_the_next(functions: Functions, work: Workload, why: str) -> None:
    """X-7: if `guard` emits nothing for one maintenance of a node, it still checks the other one.

    The first one is not cordoned yet, or its drift was emitted a moment ago.
    """
    node = work.node()
    first, second = two_of(work, node)
    begun_besides(work, first, cordoned=why == "told a moment ago")
    work.local.kubectl("label", "node", node, f"{LABEL}={second['metadata']['uid']}")
    hint = node_updated(work.read_node(node))
    earlier = [] if why == "not cordoned yet" else guard(hint, functions.clusters["guard"])
    begun_besides(work, second, cordoned=True)

    told = guard(hint, functions.clusters["guard"])

    assert [data_of(event)["maintenance"]["uid"] for event in (*earlier, *told)] == [
        item["metadata"]["uid"] for item in ([first, second] if earlier else [second])
    ]


def test_the_end_of_one_whose_node_is_gone_does_not_hold_up_the_next(functions: Functions, work: Workload) -> None:
    """NMO-20: `guard` deletes the second maintenance of a deleted node even if the first one is already gone."""
    node = work.node()
    first, second = two_of(work, node)
    for item in (first, second):
        begun_besides(work, item, cordoned=True)
        # this API version is not served, so the garbage collector keeps the maintenance
        owner = {**work.again(item)["metadata"]["ownerReferences"][0], "apiVersion": "example.com/v1"}
        work.admin.patch(m.path(item), {"metadata": {"ownerReferences": [owner]}})
    hint = node_deleted(work.read_node(node))
    work.delete(f"/api/v1/nodes/{node}")

    def act() -> None:
        work.vanish(first)

    with before(functions.clusters["guard"], "DELETE", m.path(first), act):
        assert functions.answer("guard", hint) is None

    assert m.is_deleting(work.again(second))


@pytest.mark.parametrize("deleted", [False, True], ids=["updated", "deleted"])
def test_what_a_label_was_taken_off_for_is_asked_of_the_newest_state(
    functions: Functions, work: Workload, deleted: bool
) -> None:
    """Rule 1: `guard` lists the latest state after a deletion, and the cached state after an update.

    The cache may still have the maintenance whose restored node has just lost its label.
    """
    node = work.node()
    item = maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    hint = (node_deleted if deleted else node_updated)(work.read_node(node))

    with lists_of(functions.clusters["guard"].api) as asked:
        functions.answer("guard", hint)

    versions = {one.version for one in asked if one.path == m.group(item).path}
    assert versions == ({""} if deleted else {"0"})


def aged(work: Workload, node: str, *, first: int, last: int) -> None:
    """Set the ages, in seconds, of the first and last timestamp of the Event that counts the node's drift."""
    (event,) = work.admin.list(EVENTS, fields=f"involvedObject.name={node},reason={AGAIN}")["items"]
    now = datetime.now(timezone.utc)
    times = {"firstTimestamp": first, "lastTimestamp": last}
    patch = {name: timestamp(now - timedelta(seconds=seconds)) for name, seconds in times.items()}
    work.admin.patch(f"{EVENTS}/{event['metadata']['name']}", patch)


def test_a_node_that_was_given_back_is_nobodys(functions: Functions, work: Workload, audit: Audit) -> None:
    """Rule 10: `guard` ignores the deletion event that `restore` causes by removing the label."""
    node = work.node()
    item = maintained(functions, work, node)
    before = work.read_node(node)
    work.delete(m.path(item))
    functions.answer("restore", updated(work.again(item)))
    writes = len(audit.writes_by())

    assert functions.answer("guard", node_deleted(before)) is None
    assert len(audit.writes_by()) == writes


@proves("NMO-20")
def test_a_node_replaced_under_its_name_ends_the_maintenance(functions: Functions, work: Workload) -> None:
    """NMO-20: `guard` deletes the maintenance of a deleted node even if a new node has its name."""
    node = work.node()
    item = maintained(functions, work, node)
    before = work.read_node(node)
    work.delete(f"/api/v1/nodes/{node}")
    work.admin.create("/api/v1/nodes", {"metadata": {"name": node}})

    assert functions.answer("guard", node_deleted(before)) is None

    assert m.is_deleting(work.again(item))
    assert not work.read_node(node)["spec"].get("unschedulable")


def test_a_maintenance_without_owner_reference_lives_with_its_node(functions: Functions, work: Workload) -> None:
    """NMO-20: `guard` deletes a maintenance without owner reference only if no node has the name."""
    node = work.node()
    item = maintained(functions, work, node)
    work.admin.patch(m.path(item), {"metadata": {"ownerReferences": []}})
    before = work.read_node(node)

    functions.answer("guard", node_deleted(before))
    alive = not m.is_deleting(work.again(item))
    work.delete(f"/api/v1/nodes/{node}")
    functions.answer("guard", node_deleted(before))

    assert (alive, m.is_deleting(work.again(item))) == (True, True)


def test_a_node_in_good_order_costs_nothing(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: `guard` ignores an update of a node without drift, and an outdated event about it."""
    node = work.node()
    before = work.read_node(node)
    maintained(functions, work, node)
    writes = len(audit.writes_by())

    assert functions.answer("guard", node_updated(work.read_node(node))) is None
    assert functions.answer("guard", node_updated(before)) is None
    assert len(audit.writes_by()) == writes


def test_the_start_is_no_drift(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: a node whose maintenance has begun but not yet cordoned it has not drifted."""
    node = work.node()
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    writes = len(audit.writes_by())

    assert functions.answer("guard", node_updated(work.read_node(node))) is None
    assert len(audit.writes_by()) == writes


@proves("DRN-6")
def test_a_cordon_by_hand_is_left_alone(functions: Functions, work: Workload, audit: Audit) -> None:
    """DRN-6: `guard` does not react to a cordon by hand on a node without a maintenance."""
    node = work.node()
    for command in ("cordon", "uncordon"):
        work.local.kubectl(command, node)
        assert functions.answer("guard", node_updated(work.read_node(node))) is None

    assert audit.writes_by() == []


def test_a_deleted_node_ends_its_maintenances(functions: Functions, work: Workload) -> None:
    """NMO-20: `guard` deletes the maintenance of a deleted node, and `restore` releases it."""
    node = work.node()
    item = maintained(functions, work, node)
    before = work.read_node(node)
    work.delete(f"/api/v1/nodes/{node}")

    assert functions.answer("guard", node_deleted(before)) is None

    item = work.again(item)
    assert m.is_deleting(item)
    functions.answer("restore", updated(item))
    assert work.admin.list(m.group(item).path, fields=f"metadata.name={item['metadata']['name']}")["items"] == []


def test_old_news_of_a_deleted_node_do_not_end_the_maintenance_of_the_new_one(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """X-2: an outdated deletion of an earlier node of that name does not end the new node's maintenance."""
    node = work.node()
    old = {**work.read_node(node)}
    item = maintained(functions, work, node)
    writes = len(audit.writes_by())

    functions.answer("guard", node_deleted({**old, "metadata": {**old["metadata"], "uid": "of-an-older-node"}}))

    assert not m.is_deleting(work.again(item))
    assert len(audit.writes_by()) == writes


def test_a_maintenance_that_never_began_outlives_the_node(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-22: `guard` does not delete a maintenance that never began when its node is deleted."""
    node = work.node()
    before = work.read_node(node)
    item = work.maintenance(node, KUBEVIRT)

    functions.answer("guard", node_deleted(before))

    assert not m.is_deleting(work.again(item))
    assert audit.writes_by() == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"metadata": {}}, "metadata.name of the Node"),
        ({"metadata": {"name": ""}}, "metadata.name of the Node"),
        ({"spec": None}, "spec of the Node"),
        ({"spec": {"taints": 1, "unschedulable": True}}, "the Node in data"),
    ],
)
def test_a_node_that_is_none_is_refused_by_name(functions: Functions, change: Object, named: str) -> None:
    """X-6: `guard` answers 400 to an event with a malformed Node and names the field."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {LABEL: "some-uid"}}, "spec": {}}
    event = CloudEvent(dict(node_updated(node).get_attributes()), {**node, **change})

    response = functions.post("guard", event)

    assert (response.status_code, response.text.startswith(named)) == (400, True), response.text
