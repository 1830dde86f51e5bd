"""`guard` on a real API server."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from functions.data import data_of
from functions.installs import CLAIMS
from functions.maintenance.guard import AGAIN, guard
from kube.maintenance import objects as m
from kube.maintenance.announcements import EVENTS
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, Group
from kube.maintenance.lookup import by_age
from kube.nodes import LABEL
from kube.paths import Object
from kube.times import timestamp
from tests.faults import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.hints import node_deleted, node_updated, said, updated
from tests.functions.meanwhile import before, lists_of, requests_of
from tests.proofs import proves
from tests.workload import Audit, Workload, written


def maintained(functions: Functions, work: Workload, node: str, group: Group = MEDIK8S) -> Object:
    """A maintenance whose node is cordoned and tainted, and whose status says so."""
    item = work.maintenance(node, group)
    functions.prepare(item)
    functions.answer("status", said(events.PODS_EVICTED, item))
    item = work.again(item)
    assert m.condition(item, "Cordoned")["status"] == "True"
    return item


def test_an_uncordoned_node_is_told_and_warned_of(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-3, NMO-5: uncordoned by hand during its maintenance: node.drifted, and kubectl describe shows a Warning."""
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
    """The second look finds it announced a moment ago, and says nothing more: what the first one found is told."""
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
    """NMO-4, X-7: the drain taint taken off by hand is a drift as well, of whichever group the maintenance is."""
    node = work.node()
    item = maintained(functions, work, node, group)
    work.local.kubectl("taint", "node", node, f"{group.drain_taint}:NoSchedule-")

    reply = functions.answer("guard", node_updated(work.read_node(node)))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert data_of(reply)["maintenance"] == events.Reference.of(item).as_data()


@pytest.mark.parametrize("label", ["of-an-earlier-one", ""])
def test_a_drift_is_told_whomever_the_label_names(functions: Functions, work: Workload, label: str) -> None:
    """Rule 10: the label says where to look first, and decides nothing."""
    node = work.node()
    item = maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    work.local.kubectl("label", "--overwrite", "node", node, f"{LABEL}={label}")

    reply = functions.answer("guard", node_updated(work.read_node(node)))

    assert reply is not None
    assert data_of(reply)["maintenance"] == events.Reference.of(item).as_data()


def test_between_cordon_and_taint_one_list_suffices(functions: Functions, work: Workload) -> None:
    """Rule 10: in each drain the update comes by here that adds the cluster's own taint to the cordon.

    It is known which install acts: that is asked once a minute.
    """
    CLAIMS.confirm(functions.clusters["guard"])
    node = work.node()
    functions.chain(work.maintenance(node), "begin", "cordon")
    hint = node_updated(work.read_node(node))

    with requests_of(functions.clusters["guard"].api) as counted:
        assert functions.answer("guard", hint) is None

    assert counted == {f"GET {MEDIK8S.path}": 1}


def test_a_label_taken_off_comes_back(functions: Functions, work: Workload) -> None:
    """Rule 10: the selector makes a deletion of it; the node lives, so nothing ends, and it is labelled again."""
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
    """Rule 9: a controller takes the label off whenever it comes back: answered once, and then for a pause not at all;
    after that once more, and the next pause is as long as it has been so already.
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
    assert later is None  # undone since 69 seconds: it rests for 60
    aged(work, node, first=21, last=11)
    assert functions.answer("guard", node_deleted(labelled)) is not None
    assert not m.is_deleting(work.again(item))


@pytest.mark.slow
@proves("X-6")
def test_what_cannot_be_counted_is_left_to_the_tick(
    spoiled: Functions, faults: Faults, functions: Functions, work: Workload
) -> None:
    """Rule 9: a quota refuses the Event by which it knows how often the node was closed again."""
    node = work.node()
    maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    faults.spoil(lambda request: Fault(403, "exceeded quota") if request.startswith("create events") else None)

    refused = spoiled.answer("guard", node_updated(work.read_node(node)))
    faults.speak_again()

    assert refused is None
    assert functions.answer("guard", node_updated(work.read_node(node))) is not None


def two_of(work: Workload, node: str) -> list[Object]:
    """Two maintenances of a node, in the order in which they are listed: by age, which is told in seconds, and uid."""
    return list(by_age([work.maintenance(node), work.maintenance(node)]))


def begun_besides(work: Workload, item: Object, *, cordoned: bool) -> None:
    """As if it had begun beside another one, as two do between whom a lease was lost; its status may say cordoned."""
    node = work.read_node(item["spec"]["nodeName"])
    work.admin.patch(m.path(item), m.begin_patch(work.again(item), node, {"totalpods": 0, "evictionPods": 0}))
    if cordoned:
        now = timestamp(datetime.now(timezone.utc))
        shown = {"type": "Cordoned", "status": "True", "reason": "Cordoned", "message": "m", "lastTransitionTime": now}
        work.admin.patch(f"{m.path(item)}/status", {"status": {"conditions": [shown]}})
    version = work.again(item)["metadata"]["resourceVersion"]
    work.admin.run(work.admin.api.list(m.group(item).path, version=version))  # the server's cache has it from now on


@pytest.mark.parametrize("why", ["not cordoned yet", "told a moment ago"])
def test_one_that_needs_no_answer_keeps_none_from_the_next(functions: Functions, work: Workload, why: str) -> None:
    """X-7: two maintenances of a node: the first one is between its steps, or was answered; the second one is told."""
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
    """NMO-20: the garbage collector was faster with the first one; the second one is ended all the same."""
    node = work.node()
    first, second = two_of(work, node)
    for item in (first, second):
        begun_besides(work, item, cordoned=True)
        # of a version that is not served: the garbage collector leaves it
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
    """Rule 1: a list from the cache may still show the maintenance that gave the node back; others it suffices for."""
    node = work.node()
    item = maintained(functions, work, node)
    work.local.kubectl("uncordon", node)
    hint = (node_deleted if deleted else node_updated)(work.read_node(node))

    with lists_of(functions.clusters["guard"].api) as asked:
        functions.answer("guard", hint)

    versions = {one.version for one in asked if one.path == m.group(item).path}
    assert versions == ({""} if deleted else {"0"})


def aged(work: Workload, node: str, *, first: int, last: int) -> None:
    """The Event that counts what was undone on the node looks as written so many seconds ago, first and last."""
    (event,) = work.admin.list(EVENTS, fields=f"involvedObject.name={node},reason={AGAIN}")["items"]
    now = datetime.now(timezone.utc)
    times = {"firstTimestamp": first, "lastTimestamp": last}
    patch = {name: timestamp(now - timedelta(seconds=seconds)) for name, seconds in times.items()}
    work.admin.patch(f"{EVENTS}/{event['metadata']['name']}", patch)


def test_a_node_that_was_given_back_is_nobodys(functions: Functions, work: Workload, audit: Audit) -> None:
    """Rule 10: `restore` takes the label off, which comes as a deletion: nothing is told, nothing is written."""
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
    """NMO-20: the node was deleted, and another of its name is there already: the maintenance was not of that one."""
    node = work.node()
    item = maintained(functions, work, node)
    before = work.read_node(node)
    work.delete(f"/api/v1/nodes/{node}")
    work.admin.create("/api/v1/nodes", {"metadata": {"name": node}})

    assert functions.answer("guard", node_deleted(before)) is None

    assert m.is_deleting(work.again(item))
    assert not work.read_node(node)["spec"].get("unschedulable")


def test_a_maintenance_without_owner_reference_lives_with_its_node(functions: Functions, work: Workload) -> None:
    """NMO-20: nothing says which node it began on: it is the one of that name, as long as there is one."""
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
    """X-2: heartbeats of a node as it should be, and old news of one that is right again, do nothing."""
    node = work.node()
    before = work.read_node(node)
    maintained(functions, work, node)
    writes = len(audit.writes_by())

    assert functions.answer("guard", node_updated(work.read_node(node))) is None
    assert functions.answer("guard", node_updated(before)) is None
    assert len(audit.writes_by()) == writes


def test_the_start_is_no_drift(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: a node whose maintenance has begun and whose cordon is still to come has not drifted."""
    node = work.node()
    item = work.maintenance(node)
    functions.answer("status", functions.begin(item))
    writes = len(audit.writes_by())

    assert functions.answer("guard", node_updated(work.read_node(node))) is None
    assert len(audit.writes_by()) == writes


@proves("DRN-6")
def test_a_cordon_by_hand_is_left_alone(functions: Functions, work: Workload, audit: Audit) -> None:
    """DRN-6: cordoned and uncordoned by hand, no maintenance asked for it: nothing is written."""
    node = work.node()
    for command in ("cordon", "uncordon"):
        work.local.kubectl(command, node)
        assert functions.answer("guard", node_updated(work.read_node(node))) is None

    assert audit.writes_by() == []


def test_a_deleted_node_ends_its_maintenances(functions: Functions, work: Workload) -> None:
    """NMO-20: the node is deleted: its maintenance is deleted, restore releases it, the name is free."""
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
    """X-2: a node of the same name is there again and in maintenance: the deletion of the old one is none of its."""
    node = work.node()
    old = {**work.read_node(node)}
    item = maintained(functions, work, node)
    writes = len(audit.writes_by())

    functions.answer("guard", node_deleted({**old, "metadata": {**old["metadata"], "uid": "of-an-older-node"}}))

    assert not m.is_deleting(work.again(item))
    assert len(audit.writes_by()) == writes


def test_a_maintenance_that_never_began_outlives_the_node(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-22: a refused second maintenance is not ended: it was never at work."""
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
    """X-6: what is wrong about the Node in the event is told to whoever sent it."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {LABEL: "some-uid"}}, "spec": {}}
    event = CloudEvent(dict(node_updated(node).get_attributes()), {**node, **change})

    response = functions.post("guard", event)

    assert (response.status_code, response.text.startswith(named)) == (400, True), response.text
