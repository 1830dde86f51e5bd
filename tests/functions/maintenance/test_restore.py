"""Tests of `restore` on a real API server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from functions.event_data import data_of
from functions.maintenance import event_objects
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.kubernetes_events import EVENTS, UNCORDON
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, Group
from kube.maintenance.lookup import by_age
from kube.maintenance.status_patch import KEPT
from kube.nodes import BEFORE, EXCLUDED, LABEL, node_path
from kube.nodes import in_maintenance as closed_for
from kube.paths import Object
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, said, updated
from tests.functions.request_hooks import before
from tests.proofs import proves
from tests.workload import Audit, Workload, written

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])


def in_maintenance(functions: Functions, work: Workload, node: str, group: Group = MEDIK8S) -> Object:
    """Create a maintenance whose node is cordoned and tainted."""
    item = work.maintenance(node, group)
    functions.prepare(item)
    return work.again(item)


def deleting(work: Workload, item: Object) -> Object:
    """Request the deletion of the maintenance and return it."""
    work.delete(m.path(item))
    return work.again(item)


def is_gone(work: Workload, item: Object) -> bool:
    listed = work.admin.list(m.group(item).path, fields=f"metadata.name={item['metadata']['name']}")
    return not listed["items"]


def is_given_back(node: Object | None) -> bool:
    """Return whether the node is schedulable and has no taint.

    The unschedulable taint is ignored, because the controller manager removes it a moment later.
    """
    spec = (node or {}).get("spec", {})
    ours = [taint for taint in spec.get("taints") or [] if taint["key"] != "node.kubernetes.io/unschedulable"]
    return not spec.get("unschedulable") and not ours


@proves("OSV-5")
@every_group
@pytest.mark.parametrize("told", [updated, lambda item: said(events.MAINTENANCE_ENDED, item)], ids=["hint", "resync"])
def test_the_node_is_given_back(
    functions: Functions, work: Workload, group: Group, told: Callable[[Object], CloudEvent]
) -> None:
    """NMO-14, NMO-15, X-5, OSV-5: `restore` makes the node schedulable and removes taints, labels and lease.

    It releases the maintenance and emits `node.restored`.
    """
    node = work.node()
    item = deleting(work, in_maintenance(functions, work, node, group))

    reply = functions.answer("restore", told(item))

    assert reply is not None
    assert (reply.get_type(), data_of(reply)["node"]) == (events.NODE_RESTORED, node)
    assert is_given_back(work.read_node(node))
    assert LABEL not in work.read_node(node)["metadata"]["labels"]
    assert is_gone(work, item)
    assert work.admin.list(leases.LEASES, fields=f"metadata.name={leases.lease_name(node)}")["items"] == []


@proves("NMO-14")
def test_what_belongs_to_others_stays(functions: Functions, work: Workload) -> None:
    """NMO-14, KNM-4: `restore` keeps foreign taints and labels, and removes ours whatever their value."""
    node = work.node()
    work.local.kubectl("taint", "node", node, "medik8s.io/drain=by-hand:NoSchedule", "example.com/theirs=1:NoSchedule")
    work.local.kubectl("taint", "node", node, "medik8s.io/drain=other:PreferNoSchedule")
    work.local.kubectl("label", "node", node, "example.com/theirs=1")
    labels = work.read_node(node)["metadata"]["labels"]
    item = deleting(work, in_maintenance(functions, work, node))

    functions.answer("restore", updated(item))

    after = work.read_node(node)
    taints = {(taint["key"], taint.get("value"), taint["effect"]) for taint in after["spec"]["taints"]}
    assert taints == {
        ("example.com/theirs", "1", "NoSchedule"),
        ("medik8s.io/drain", "other", "PreferNoSchedule"),
    }
    assert after["metadata"]["labels"] == labels


@proves("KNM-4", "C4")
def test_a_drain_taint_that_had_a_value_goes_at_the_end(functions: Functions, work: Workload) -> None:
    """Drain taints that existed with a value before the maintenance are removed at its end, too."""
    node = work.node()
    work.local.kubectl("taint", "node", node, "kubevirt.io/drain=draining:NoSchedule")
    item = deleting(work, in_maintenance(functions, work, node, KUBEVIRT))

    functions.answer("restore", updated(item))

    assert is_given_back(work.read_node(node))


@proves("NMO-27b")
def test_a_node_whose_label_was_taken_off_is_excluded_no_more(functions: Functions, work: Workload) -> None:
    """NMO-27b: `restore` removes the other labels even if the maintenance label was removed by hand."""
    node = work.node()
    item = in_maintenance(functions, work, node)
    work.local.kubectl("label", "node", node, f"{LABEL}-")

    functions.answer("restore", updated(deleting(work, item)))

    assert is_given_back(work.read_node(node))
    assert not {LABEL, BEFORE, EXCLUDED} & work.read_node(node)["metadata"]["labels"].keys()


def vanish(work: Workload, item: Object) -> None:
    """Remove the finalizer of the maintenance and delete it, so that `restore` does not run."""
    work.vanish(item)


@proves("X-7")
@pytest.mark.parametrize("steps", [("begin",), ("begin", "cordon", "taint")], ids=["begun", "closed"])
def test_the_taint_of_one_that_vanished_goes_with_the_next_one(
    functions: Functions, work: Workload, steps: tuple[str, ...]
) -> None:
    """NMO-14: `restore` also removes the drain taint of an earlier maintenance that vanished."""
    node = work.node()
    vanish(work, in_maintenance(functions, work, node, KUBEVIRT))
    item = work.maintenance(node)
    functions.chain(item, *steps)

    functions.answer("restore", updated(deleting(work, work.again(item))))

    assert is_given_back(work.read_node(node))


@proves("X-7")
def test_the_taint_of_one_that_only_waits_is_not_kept_for_it(functions: Functions, work: Workload) -> None:
    """NMO-14: `restore` does not keep a drain taint for a maintenance that only waits for the node."""
    node = work.node()
    first = in_maintenance(functions, work, node, KUBEVIRT)
    second, third = work.maintenance(node), work.maintenance(node, KUBEVIRT)
    functions.answer("restore", updated(deleting(work, first)))
    functions.prepare(second)
    work.delete(m.path(third))

    functions.answer("restore", updated(deleting(work, work.again(second))))

    assert is_given_back(work.read_node(node))


@proves("X-1")
def test_the_pods_of_others_nodes_stay_where_they_are(functions: Functions, work: Workload, audit: Audit) -> None:
    """OSV-6, X-1: `restore` writes the node, the maintenance, the lease and Events, and no pod."""
    node = work.node()
    work.pods(node, "stays")
    item = deleting(work, in_maintenance(functions, work, node))
    writes = len(audit.writes_by())

    functions.answer("restore", updated(item))

    kinds = [(verb, kind) for verb, kind, _ in written(audit.writes_by()[writes:])]
    assert kinds == [
        ("patch", "nodes"),
        ("create", "events"),
        ("delete", "leases"),
        ("patch", "nodemaintenances"),
        ("create", "events"),
        ("create", "events"),
    ]
    assert "Uncordon a node" in work.local.kubectl("describe", "node", node).stdout


def test_what_one_writes_meanwhile_keeps_the_finalizer_for_the_next_try(functions: Functions, work: Workload) -> None:
    """X-6: `restore` answers 503 if the maintenance was edited since it was read, and succeeds when retried."""
    item = deleting(work, in_maintenance(functions, work, work.node()))

    def act() -> None:
        work.admin.patch(m.path(item), {"metadata": {"labels": {"edited": "yes"}}})

    with before(functions.clusters["restore"], "PATCH", m.path(item), act):
        response = functions.post("restore", updated(item))
    assert (response.status_code, "finalizer" in response.text) == (503, True)
    functions.answer("restore", updated(item))

    assert is_gone(work, item)


@proves("OSV-12")
def test_the_announcement_is_no_warning(functions: Functions, work: Workload) -> None:
    """OSV-12: the Event for a restored node has the type Normal."""
    node = work.node()
    functions.answer("restore", updated(deleting(work, in_maintenance(functions, work, node))))

    assert uncordoned(work, node) == ["Normal"]


def uncordoned(work: Workload, node: str) -> list[str]:
    """Return the types of the node's UncordonNode Events."""
    found = work.admin.list(EVENTS, fields=f"involvedObject.name={node},reason={UNCORDON}")["items"]
    return [item["type"] for item in found]


@proves("X-7", "OSV-12")
def test_a_node_that_is_handed_over_is_not_announced_as_open(functions: Functions, work: Workload) -> None:
    """X-7, OSV-12: no UncordonNode is recorded if the node stays cordoned for its next maintenance."""
    node = work.node()
    first = in_maintenance(functions, work, node, KUBEVIRT)
    work.maintenance(node)

    functions.answer("restore", updated(deleting(work, first)))

    assert work.read_node(node)["spec"]["unschedulable"] is True
    assert uncordoned(work, node) == []


@proves("NMO-14")
def test_the_drain_taint_of_another_group_that_others_set_stays(functions: Functions, work: Workload) -> None:
    """NMO-14: `restore` keeps another group's drain taint that the maintenance did not set."""
    node = work.node()
    work.local.kubectl("taint", "node", node, "kubevirt.io/drain=by-hand:NoSchedule")
    item = deleting(work, in_maintenance(functions, work, node))

    functions.answer("restore", updated(item))

    taints = {(taint["key"], taint.get("value")) for taint in work.read_node(node)["spec"]["taints"]}
    assert ("kubevirt.io/drain", "by-hand") in taints
    assert MEDIK8S.drain_taint not in {key for key, _ in taints}


@proves("X-7")
def test_the_maintenance_of_another_node_is_no_heir(functions: Functions, work: Workload) -> None:
    """X-7: a maintenance of another node is not a successor and gets no finalizer."""
    node = work.node()
    item = in_maintenance(functions, work, node)
    elsewhere = work.maintenance(work.node())

    reply = functions.answer("restore", updated(deleting(work, item)))

    assert reply is not None
    assert reply.get_type() == events.NODE_RESTORED
    assert is_given_back(work.read_node(node))
    assert m.finalizers(work.again(elsewhere)) == []


@proves("X-7")
def test_the_taint_that_only_the_second_in_turn_would_need_goes(functions: Functions, work: Workload) -> None:
    """X-7, NMO-14: `restore` keeps only the drain taint of the next maintenance, not of those after it."""
    node = work.node()
    first = in_maintenance(functions, work, node, KUBEVIRT)
    heir = work.maintenance(node)
    last = work.maintenance(node, KUBEVIRT)
    while by_age([heir, last])[0] is not heir:  # their ages are equal within a second, so the uids decide
        work.delete(m.path(last))
        last = work.maintenance(node, KUBEVIRT)

    reply = functions.answer("restore", updated(deleting(work, first)))

    assert reply is not None
    assert data_of(reply)["maintenance"] == events.Reference.of(heir).as_data()
    assert KUBEVIRT.drain_taint not in {taint["key"] for taint in work.read_node(node)["spec"]["taints"]}


def test_an_update_that_is_no_deletion_costs_nothing(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: `restore` ignores events about a maintenance that is not being deleted, such as status updates."""
    item = in_maintenance(functions, work, work.node())
    writes = len(audit.writes_by())

    assert functions.answer("restore", updated(item)) is None
    assert functions.answer("restore", said(events.MAINTENANCE_ENDED, item)) is None
    assert len(audit.writes_by()) == writes


def test_the_status_that_tells_why_the_node_is_not_given_back_is_no_hint(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """Rule 9: a status update that reports a failed restore does not trigger another one; only a tick does.

    Otherwise a webhook whose message changes each time would cause an endless loop.
    """
    item = deleting(work, in_maintenance(functions, work, work.node()))
    told = {**item, "status": {**item.get("status", {}), "lastError": f"{KEPT}refused at 12:00:01"}}
    writes = len(audit.writes_by())

    assert functions.answer("restore", updated(told)) is None
    assert len(audit.writes_by()) == writes

    functions.answer("restore", said(events.MAINTENANCE_ENDED, item))

    assert is_gone(work, item)


def test_a_duplicate_does_nothing(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: a duplicate event does nothing, even if a new maintenance has the same name."""
    node = work.node()
    item = deleting(work, in_maintenance(functions, work, node))
    event = updated(item)
    functions.answer("restore", event)
    writes = len(audit.writes_by())

    assert functions.answer("restore", event) is None
    again = {"apiVersion": item["apiVersion"], "kind": item["kind"], "spec": item["spec"]}
    fresh = work.admin.create(MEDIK8S.path, {**again, "metadata": {"name": item["metadata"]["name"]}})
    work.delete(m.path(fresh))

    assert functions.answer("restore", event) is None
    assert len(audit.writes_by()) == writes


@proves("NMO-15")
def test_the_name_can_be_used_again_at_once(functions: Functions, work: Workload) -> None:
    """NMO-15: a new maintenance with the same name can begin right after the restore."""
    node = work.node()
    item = deleting(work, in_maintenance(functions, work, node))
    functions.answer("restore", updated(item))
    again = {"apiVersion": item["apiVersion"], "kind": item["kind"], "spec": item["spec"]}
    fresh = work.admin.create(MEDIK8S.path, {**again, "metadata": {"name": item["metadata"]["name"]}})

    reply = functions.answer("begin", added(fresh))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_BEGUN


@proves("NMO-14", "C22")
def test_an_earlier_cordon_by_hand_is_taken_off_too(functions: Functions, work: Workload) -> None:
    """NMO-14, C22: `restore` also removes a cordon that was set by hand before the maintenance."""
    node = work.node()
    work.local.kubectl("cordon", node)
    item = deleting(work, in_maintenance(functions, work, node))

    functions.answer("restore", updated(item))

    assert not work.read_node(node)["spec"].get("unschedulable")


@proves("NMO-16")
def test_the_old_operators_finalizer_goes_too(functions: Functions, work: Workload) -> None:
    """NMO-16: `restore` removes the replaced operator's finalizer and keeps those of others."""
    node = work.node()
    item = work.maintenance(node, finalizers=["foregroundDeleteNodeMaintenance", "example.com/hold"])
    work.local.kubectl("cordon", node)
    item = deleting(work, item)

    functions.answer("restore", updated(item))

    assert work.again(item)["metadata"]["finalizers"] == ["example.com/hold"]
    assert not work.read_node(node)["spec"].get("unschedulable")
    work.admin.patch(m.path(item), {"metadata": {"finalizers": []}})


@proves("NMO-14")
def test_a_node_that_is_gone_holds_nobody(functions: Functions, work: Workload) -> None:
    """NMO-14, NMO-20: `restore` releases a maintenance whose node is deleted."""
    node = work.node()
    item = in_maintenance(functions, work, node)
    work.delete(f"/api/v1/nodes/{node}")
    item = deleting(work, item)

    reply = functions.answer("restore", updated(item))

    assert reply is not None
    assert reply.get_type() == events.NODE_RESTORED
    assert is_gone(work, item)


@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_the_node_stays_in_maintenance_until_both_are_gone(
    functions: Functions, work: Workload, second_group: Group
) -> None:
    """X-7, NMO-22: after the first maintenance ends, the node stays cordoned and goes to the second one.

    The end of the second one restores it.
    """
    node = work.node()
    first = in_maintenance(functions, work, node)
    second = work.maintenance(node, second_group)
    functions.answer("begin", added(second))

    reply = functions.answer("restore", updated(deleting(work, first)))

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_FOUND
    assert data_of(reply)["maintenance"] == events.Reference.of(second).as_data()
    assert is_gone(work, first)
    assert work.read_node(node)["spec"]["unschedulable"] is True
    assert work.read_node(node)["metadata"]["labels"][LABEL] == second["metadata"]["uid"]

    begun = functions.answer("begin", reply)
    assert begun is not None
    cordoned = functions.answer("cordon", begun)
    assert cordoned is not None
    functions.answer("taint", cordoned)
    last = functions.answer("restore", updated(deleting(work, second)))

    assert last is not None
    assert last.get_type() == events.NODE_RESTORED
    assert is_given_back(work.read_node(node))


@proves("X-7")
@pytest.mark.parametrize("second_group", [MEDIK8S, KUBEVIRT], ids=["same-group", "other-group"])
def test_two_that_are_deleted_together_give_the_node_back(
    functions: Functions, work: Workload, audit: Audit, second_group: Group
) -> None:
    """X-7: a successor that is deleted before it begins restores the node."""
    node = work.node()
    first = in_maintenance(functions, work, node)
    second = work.maintenance(node, second_group)
    found = functions.answer("restore", updated(deleting(work, first)))
    assert found is not None
    writes = len(audit.writes_by())

    last = functions.answer("restore", updated(deleting(work, second)))

    assert last is not None
    assert last.get_type() == events.NODE_RESTORED
    assert is_given_back(work.read_node(node))
    assert LABEL not in work.read_node(node)["metadata"]["labels"]
    assert is_gone(work, second)
    assert functions.answer("begin", found) is None
    assert len(audit.writes_by()) - writes <= 6


@proves("X-7")
@pytest.mark.parametrize("when", ["told", "beginning"])
def test_an_heir_that_is_gone_with_its_node_gives_it_back(functions: Functions, work: Workload, when: str) -> None:
    """X-7: if the successor vanished, `begin` emits `maintenance.ended`, and the node is restored without a tick.

    The API server may ignore a finalizer that is written during a deletion.
    """
    node = work.node()
    first = in_maintenance(functions, work, node)
    second = work.maintenance(node)
    found = functions.answer("restore", updated(deleting(work, first)))
    assert found is not None
    if when == "told":
        work.vanish(second)
    else:
        with before(functions.clusters["begin"], "PATCH", m.path(second), lambda: work.vanish(second)):
            assert functions.post("begin", found).status_code == 503

    ended = functions.answer("begin", found)

    assert ended is not None
    assert ended.get_type() == events.MAINTENANCE_ENDED
    functions.answer("restore", ended)
    assert is_given_back(work.read_node(node))
    assert LABEL not in work.read_node(node)["metadata"]["labels"]
    assert functions.answer("begin", found) is None


@pytest.mark.parametrize("when", ["chosen", "kept by others"])
def test_an_heir_that_goes_before_it_is_told_is_none(functions: Functions, work: Workload, when: str) -> None:
    """X-7: a maintenance that is deleted before it gets our finalizer is not a successor; the node is restored."""
    node = work.node()
    first = in_maintenance(functions, work, node)
    second = work.maintenance(node, finalizers=["example.com/hold"] if when == "kept by others" else [])
    event, door = updated(deleting(work, first)), functions.clusters["restore"]

    with before(door, "PATCH", m.path(second), lambda: work.delete(m.path(second))):
        reply = functions.answer("restore", event)

    assert reply is not None
    assert reply.get_type() == events.NODE_RESTORED
    assert is_given_back(work.read_node(node))
    assert is_gone(work, first)
    assert when == "chosen" or work.again(second)["metadata"]["finalizers"] == ["example.com/hold"]


def test_an_heir_that_is_written_meanwhile_takes_over_all_the_same(functions: Functions, work: Workload) -> None:
    """X-7: a successor that is edited before it gets our finalizer is read again and takes over."""
    node = work.node()
    event = updated(deleting(work, in_maintenance(functions, work, node)))
    second = work.maintenance(node)

    def act() -> None:
        work.admin.patch(m.path(second), {"spec": {"reason": "edited"}})

    with before(functions.clusters["restore"], "PATCH", m.path(second), act):
        reply = functions.answer("restore", event)

    assert reply is not None
    assert data_of(reply)["maintenance"] == events.Reference.of(second).as_data()
    assert work.again(second)["metadata"]["finalizers"] == [m.FINALIZER]
    assert work.read_node(node)["spec"]["unschedulable"] is True


@proves("X-2")
def test_a_duplicate_that_runs_late_strips_no_successor(functions: Functions, work: Workload) -> None:
    """X-2: a late duplicate does not change the node of a maintenance that began meanwhile."""
    node = work.node()
    event = updated(deleting(work, in_maintenance(functions, work, node)))
    successors: list[Object] = []

    def act() -> None:
        assert functions.answer("restore", event) is not None
        successors.append(in_maintenance(functions, work, node))

    with before(functions.clusters["restore"], "PATCH", node_path(node), act):
        assert functions.answer("restore", event) is None

    found = work.read_node(node)
    assert closed_for(found, MEDIK8S.drain_taint)
    assert found["metadata"]["labels"][LABEL] == successors[0]["metadata"]["uid"]
    assert leases.is_holder(work.admin.get(leases.lease_path(node)), successors[0])


@proves("X-2")
def test_a_late_duplicate_leaves_the_successors_lease(functions: Functions, work: Workload) -> None:
    """X-2: a lease that another holder takes over between read and deletion is not deleted."""
    node = work.node()
    item = in_maintenance(functions, work, node)
    event, path = updated(deleting(work, item)), leases.lease_path(node)

    with before(functions.clusters["restore"], "DELETE", path, lambda: renewed(work, path)):
        functions.answer("restore", event)

    assert work.admin.get(path)["spec"]["holderIdentity"] == "the next one"


def renewed(work: Workload, path: str) -> None:
    """Make another holder take over the lease at this path."""
    work.admin.patch(path, {"spec": {"holderIdentity": "the next one"}})


@proves("NMO-20")
def test_the_cordon_of_a_node_made_anew_is_not_lifted(functions: Functions, work: Workload) -> None:
    """NMO-20: `restore` does not uncordon a node that replaced the original one between read and write."""
    node = work.node()
    event = updated(deleting(work, in_maintenance(functions, work, node)))

    def act() -> None:
        work.delete(node_path(node))
        work.admin.create("/api/v1/nodes", {"metadata": {"name": node}, "spec": {"unschedulable": True}})

    with before(functions.clusters["restore"], "PATCH", node_path(node), act):
        functions.answer("restore", event)

    assert work.read_node(node)["spec"]["unschedulable"] is True


def test_a_refused_second_one_takes_nothing_with_it(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-22: the deletion of a maintenance that never began does not change the node."""
    node = work.node()
    in_maintenance(functions, work, node)
    second = work.maintenance(node, KUBEVIRT)
    failed = functions.answer("begin", added(second))
    assert failed is not None
    functions.answer("status", failed)
    second = work.again(second)
    work.delete(m.path(second))
    writes = len(audit.writes_by())

    hint = {**second, "metadata": {**second["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert functions.answer("restore", updated(hint)) is None
    assert len(audit.writes_by()) == writes
    assert work.read_node(node)["spec"]["unschedulable"] is True


def test_an_interrupted_restore_is_finished(functions: Functions, work: Workload) -> None:
    """X-5: `restore` removes the finalizer if an earlier attempt restored only the node."""
    node = work.node()
    item = deleting(work, in_maintenance(functions, work, node))
    work.local.kubectl("uncordon", node)
    work.local.kubectl("taint", "node", node, "medik8s.io/drain:NoSchedule-")

    functions.answer("restore", said(events.MAINTENANCE_ENDED, item))

    assert is_gone(work, item)


def test_the_operators_lines_are_in_the_log(
    functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-17, NMO-17a, KNM-5: `restore` logs each change with the messages of both documents."""
    node = work.node()
    item = deleting(work, in_maintenance(functions, work, node))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.answer("restore", updated(item))

    assert [record.message for record in caplog.records] == [
        "Reconciling NodeMaintenance",
        f"Maintenance taints will be removed from node {node}",
        f"Applying medik8s.io/drain taint remove on Node: {node}",
        f"uncordon Node: {node}",
        f"NodeMaintenance Object: /{item['metadata']['name']} Deleted ",
    ]
