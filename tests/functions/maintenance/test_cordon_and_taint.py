"""Tests of node writes that arrive too late, because the maintenance was deleted after the step had read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import data_of
from kube.client.api import JSON_PATCH
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS, KUBEVIRT, MEDIK8S, Group
from kube.nodes import LABEL, cordon_patch, in_maintenance, node_path
from kube.paths import Object
from tests.functions.conftest import Functions
from tests.functions.event_builders import said, tick, updated
from tests.functions.request_hooks import before, requests_of
from tests.proofs import proves
from tests.workload import Audit, Workload, written

pytestmark = pytest.mark.usefixtures("at_rest")

COMES_TO = {"cordon": ("begin",), "taint": ("begin", "cordon")}
"""Step with the late write → the steps before it."""


def is_open(node: Object) -> bool:
    """Return whether the node is schedulable and has neither our label nor a drain taint.

    The unschedulable taint is ignored, because the controller manager removes it.
    """
    keys = {taint["key"] for taint in node["spec"].get("taints") or []}
    return not (node["spec"].get("unschedulable") or LABEL in node["metadata"]["labels"] or keys & DRAIN_TAINTS)


def given_back(functions: Functions, work: Workload, item: Object) -> Callable[[], None]:
    """Return an action that deletes the maintenance and restores its node, to run during another step."""

    def act() -> None:
        work.delete(m.path(item))
        reply = functions.answer("restore", updated(work.again(item)))
        assert reply is not None
        assert reply.get_type() == events.NODE_RESTORED

    return act


def late(functions: Functions, work: Workload, item: Object, step: str) -> BaseCloudEvent | None:
    """Return the reply of a step whose node patch arrives after the node was restored."""
    node = item["spec"]["nodeName"]
    event = functions.chain(item, *COMES_TO[step])
    with before(functions.clusters[step], "PATCH", node_path(node), given_back(functions, work, item)):
        return functions.answer(step, event)


def test_a_cordon_that_comes_after_the_end_is_undone(functions: Functions, work: Workload, audit: Audit) -> None:
    """Rule 12: if the maintenance is deleted during `cordon`, the reply of `taint` makes `restore` undo the cordon."""
    node = work.node()
    item = work.maintenance(node)

    cordoned = late(functions, work, item, "cordon")
    assert cordoned is not None
    reply = functions.answer("taint", cordoned)

    assert reply is not None
    assert (reply.get_type(), data_of(reply)["maintenance"]) == (
        events.MAINTENANCE_ENDED,
        events.Reference.of(item).as_data(),
    )
    assert not is_open(work.read_node(node))
    restored = functions.answer("restore", reply)
    assert restored is not None
    assert restored.get_type() == events.NODE_RESTORED
    assert is_open(work.read_node(node))
    assert functions.answer("restore", reply) is None
    assert functions.answer("resync", tick()) is None
    assert len([entry for entry in written(audit.writes_by()) if entry[:2] == ("patch", "nodes")]) == 2


def test_a_cordon_that_timed_out_and_was_done_afterwards_is_undone(functions: Functions, work: Workload) -> None:
    """Rule 12: a redelivery undoes a cordon that the API server executed after the step's timeout."""
    node = work.node()
    item = work.maintenance(node)
    begun = functions.begin(item)
    patch = cordon_patch(work.read_node(node), item["metadata"]["uid"])
    given_back(functions, work, item)()
    work.admin.patch(node_path(node), patch, JSON_PATCH)

    reply = functions.answer("cordon", begun)

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_ENDED
    functions.answer("restore", reply)
    assert is_open(work.read_node(node))
    assert functions.answer("cordon", begun) is None


def test_a_taint_that_comes_after_the_end_is_refused(functions: Functions, work: Workload) -> None:
    """Rule 12: the API server rejects a late taint, because the label in its precondition is gone."""
    node = work.node()

    assert late(functions, work, work.maintenance(node), "taint") is None

    assert is_open(work.read_node(node))


def test_a_label_that_somebody_took_off_comes_back_with_the_taint(functions: Functions, work: Workload) -> None:
    """Rule 12: `taint` restores a label that another writer removed, and the maintenance continues."""
    node = work.node()
    item = work.maintenance(node)
    cordoned = functions.chain(item, "begin", "cordon")
    work.local.kubectl("label", "node", node, f"{LABEL}-")

    reply = functions.answer("taint", cordoned)

    assert reply is not None
    assert reply.get_type() == events.NODE_TAINTED
    assert work.read_node(node)["metadata"]["labels"][LABEL] == item["metadata"]["uid"]


def test_a_taint_on_a_labelled_node_needs_no_look_behind_it(functions: Functions, work: Workload) -> None:
    """Rule 8: on a labelled node, `taint` reads the maintenance once before each write and not afterwards."""
    node = work.node()
    item = work.maintenance(node)
    cordoned = functions.chain(item, "begin", "cordon")

    with requests_of(functions.clusters["taint"].api) as counted:
        functions.answer("taint", cordoned)

    assert counted[f"GET {m.path(item)}"] == counted[f"PATCH {node_path(node)}"] > 0


@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=["medik8s", "kubevirt"])
def test_a_taint_on_a_node_that_was_given_back_already_is_undone(
    functions: Functions, work: Workload, group: Group
) -> None:
    """Rule 12: if the node is restored after `taint` read the maintenance, the reply of `taint` undoes the taints."""
    node = work.node()
    item = work.maintenance(node, group)
    cordoned = functions.chain(item, "begin", "cordon")
    act = given_back(functions, work, item)
    with before(functions.clusters["taint"], "GET", node_path(node), act, read=m.path(item)):
        reply = functions.answer("taint", cordoned)

    assert reply is not None
    assert reply.get_type() == events.MAINTENANCE_ENDED
    functions.answer("restore", reply)
    assert is_open(work.read_node(node))


@pytest.mark.parametrize("drained", [False, True], ids=["before its steps", "after its steps"])
def test_a_late_cordon_leaves_the_next_maintenance_alone(functions: Functions, work: Workload, drained: bool) -> None:
    """Rule 12: a late cordon does not change the taints and the label of the node's next maintenance."""
    node = work.node()
    item = work.maintenance(node)
    begun = functions.begin(item)
    following: list[Object] = []

    def act() -> None:
        given_back(functions, work, item)()
        following.append(work.maintenance(node, KUBEVIRT))
        functions.begin(following[0])
        if drained:
            functions.prepare(following[0])

    with before(functions.clusters["cordon"], "PATCH", node_path(node), act):
        reply = functions.answer("cordon", begun)
    if reply is not None and (reply := functions.answer("taint", reply)) is not None:
        assert reply.get_type() == events.MAINTENANCE_ENDED
        functions.answer("restore", reply)
    functions.prepare(following[0])

    found = work.read_node(node)
    assert in_maintenance(found, KUBEVIRT.drain_taint)
    assert found["metadata"]["labels"][LABEL] == following[0]["metadata"]["uid"]
    assert leases.is_holder(work.admin.get(leases.lease_path(node)), following[0])


@proves("X-3")
def test_a_tick_finds_what_the_second_look_missed(functions: Functions, work: Workload, audit: Audit) -> None:
    """Rule 12: if the reply of `cordon` is lost, a tick emits one event, and `restore` undoes the late cordon."""
    node = work.node()
    late(functions, work, work.maintenance(node), "cordon")

    ended = functions.answer("resync", tick())
    assert ended is not None
    assert (ended.get_type(), data_of(ended)["node"]) == (events.MAINTENANCE_ENDED, node)
    writes = len(audit.writes_by())
    restored = functions.answer("restore", ended)

    assert restored is not None
    assert (restored.get_type(), data_of(restored)["node"]) == (events.NODE_RESTORED, node)
    assert is_open(work.read_node(node))
    kinds = [(verb, kind) for verb, kind, _ in written(audit.writes_by()[writes:])]
    assert kinds == [("patch", "nodes"), ("create", "events")]
    assert functions.answer("resync", tick()) is None


@proves("X-3", "X-5")
def test_a_maintenance_whose_finalizer_was_taken_off_leaves_nothing(functions: Functions, work: Workload) -> None:
    """X-3, X-5: a tick restores node and lease of a maintenance whose finalizer was removed during the drain."""
    node = work.node()
    item = work.maintenance(node, KUBEVIRT)
    functions.prepare(item)
    work.vanish(item)

    ended = functions.answer("resync", tick())
    assert ended is not None
    assert data_of(ended)["maintenance"] == events.Reference.of(item).as_data()
    assert functions.answer("restore", ended) is not None

    assert is_open(work.read_node(node))
    assert work.admin.list(leases.LEASES, fields=f"metadata.name={leases.lease_name(node)}")["items"] == []
    assert functions.answer("resync", tick()) is None


def test_a_lease_without_its_maintenance_is_released(functions: Functions, work: Workload) -> None:
    """Rule 12: a tick releases the lease of a maintenance that no longer exists, without changing the node."""
    node = work.node()
    work.local.kubectl("cordon", node)
    item = work.maintenance(node)
    functions.begin(item)
    work.vanish(item)

    ended = functions.answer("resync", tick())
    assert ended is not None
    restored = functions.answer("restore", ended)

    assert restored is not None
    assert restored.get_type() == events.NODE_RESTORED
    assert work.admin.list(leases.LEASES, fields=f"metadata.name={leases.lease_name(node)}")["items"] == []
    assert work.read_node(node)["spec"]["unschedulable"] is True
    assert functions.answer("resync", tick()) is None


def test_what_a_duplicate_has_released_is_told_once(functions: Functions, work: Workload) -> None:
    """X-2: `restore` emits nothing if a duplicate event has already released the orphaned lease."""
    node = work.node()
    item = work.maintenance(node)
    functions.begin(item)
    ended, path = said(events.MAINTENANCE_ENDED, item), leases.lease_path(node)
    work.vanish(item)

    with before(functions.clusters["restore"], "DELETE", path, lambda: work.delete(path)):
        assert functions.answer("restore", ended) is None


def test_a_stray_is_given_back_whatever_is_maintained_elsewhere(functions: Functions, work: Workload) -> None:
    """Rule 12: `restore` restores an orphaned node although another node has a maintenance."""
    node = work.node()
    item = work.maintenance(node)
    functions.prepare(item)
    ended = said(events.MAINTENANCE_ENDED, item)
    work.vanish(item)
    work.maintenance(work.node())

    assert functions.answer("restore", ended) is not None
    assert is_open(work.read_node(node))


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "waiting"])
def test_a_stray_that_is_none_is_left_alone(functions: Functions, work: Workload, audit: Audit, begun: bool) -> None:
    """X-2: an outdated event does not restore a node that has a new maintenance."""
    node = work.node()
    item = work.maintenance(node)
    functions.prepare(item)
    ended = said(events.MAINTENANCE_ENDED, item)
    work.vanish(item)
    following = work.maintenance(node)
    if begun:
        functions.prepare(following)
    writes = len(audit.writes_by())

    assert functions.answer("restore", ended) is None
    assert len(audit.writes_by()) == writes


def test_that_a_node_was_found_open_goes_with_the_chain(functions: Functions, work: Workload) -> None:
    """Rule 9: `cordon` and `taint` copy `again` from event to reply, so that `evict` knows of the earlier drift."""
    item = work.maintenance(work.node())
    first = functions.prepare(item)

    cordoned = functions.answer("cordon", said(events.NODE_DRIFTED, item, data={"again": True}))
    assert cordoned is not None
    tainted = functions.answer("taint", cordoned)

    assert tainted is not None
    assert [data_of(event).get("again") for event in (first, cordoned, tainted)] == [None, True, True]
