"""Tests of `taint` on a real API server."""

from __future__ import annotations

import threading

import pytest

from eventing import events
from functions.maintenance import event_objects
from kube.client.sync_client import Cluster
from kube.maintenance.groups import GROUPS, KUBEVIRT, Group
from kube.nodes import UNSCHEDULABLE
from localcluster.cluster import LocalCluster
from tests.functions.conftest import Functions
from tests.proofs import proves
from tests.workload import Audit, Workload, written

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])


def taints_of(work: Workload, node: str) -> list[tuple[str, str, str]]:
    """Return the node's taints in order, as (key, value, effect)."""
    taints = work.read_node(node)["spec"].get("taints") or []
    return [(taint["key"], taint.get("value", ""), taint["effect"]) for taint in taints]


@proves("X-1", "NMO-4", "KNM-4", "C3")
@every_group
def test_the_groups_taints_are_added(functions: Functions, work: Workload, audit: Audit, group: Group) -> None:
    """NMO-4, KNM-4, DRN-13, X-1: `taint` adds the group's drain taint and the unschedulable taint in one patch."""
    node = work.node()
    cordoned = functions.chain(work.maintenance(node, group), "begin", "cordon")
    writes = len(audit.writes_by())

    reply = functions.answer("taint", cordoned)

    assert reply is not None
    assert reply.get_type() == events.NODE_TAINTED
    assert sorted(taints_of(work, node)) == sorted(
        [(group.drain_taint, "", "NoSchedule"), (UNSCHEDULABLE, "", "NoSchedule")]
    )
    assert written(audit.writes_by()[writes:]) == [("patch", "nodes", node)]


def test_tainted_twice_is_written_once(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: a redelivered event writes nothing and gets the same reply."""
    node = work.node()
    cordoned = functions.chain(work.maintenance(node), "begin", "cordon")
    first = functions.answer("taint", cordoned)
    writes = len(audit.writes_by())

    second = functions.answer("taint", cordoned)

    assert first is not None
    assert second is not None
    assert second.get_id() == first.get_id()
    assert len(audit.writes_by()) == writes


@proves("NMO-4", "KNM-4", "C4")
def test_a_drain_taint_with_a_value_is_kept(functions: Functions, work: Workload) -> None:
    """NMO-4, KNM-4, C4: an existing drain taint with a value is not changed."""
    node = work.node()
    work.local.kubectl("taint", "node", node, "kubevirt.io/drain=draining:NoSchedule")

    functions.prepare(work.maintenance(node, KUBEVIRT))

    assert sorted(taints_of(work, node)) == [
        ("kubevirt.io/drain", "draining", "NoSchedule"),
        (UNSCHEDULABLE, "", "NoSchedule"),
    ]


@proves("NMO-4")
def test_the_taints_of_others_stay_in_place(functions: Functions, work: Workload) -> None:
    """NMO-4: existing taints keep their order and precede ours, even our key with another effect."""
    node = work.node()
    theirs = ["example.com/b=2:NoSchedule", "example.com/a=1:PreferNoSchedule", "medik8s.io/drain:PreferNoSchedule"]
    work.local.kubectl("taint", "node", node, *theirs)
    before = taints_of(work, node)

    functions.prepare(work.maintenance(node))

    after = taints_of(work, node)
    assert len(before) == 3
    assert after[:3] == before
    assert sorted(after[3:]) == [("medik8s.io/drain", "", "NoSchedule"), (UNSCHEDULABLE, "", "NoSchedule")]


@proves("X-6", "NMO-4")
def test_a_concurrent_writer_loses_nothing(functions: Functions, work: Workload, quiet: LocalCluster) -> None:
    """NMO-4, X-6: no taint is lost while another writer adds taints to the same node."""
    node = work.node()
    cordoned = functions.chain(work.maintenance(node), "begin", "cordon")
    door = Cluster(str(quiet.kubeconfig))
    started = threading.Event()

    def others() -> None:
        for number in range(12):
            work.local.kubectl("taint", "node", node, f"example.com/{number}:NoSchedule")
            started.set()

    writer = threading.Thread(target=others)
    writer.start()
    started.wait()
    statuses = {functions.post("taint", cordoned).status_code for _ in range(20)}
    writer.join()
    functions.answer("taint", cordoned)
    door.close()

    keys = [key for key, _, _ in taints_of(work, node)]
    assert statuses <= {200, 503}
    assert sorted(keys) == sorted(
        [*(f"example.com/{number}" for number in range(12)), "medik8s.io/drain", UNSCHEDULABLE]
    )


@proves("DRN-13", "NMO-17", "NMO-17a")
@every_group
def test_the_operators_lines_are_in_the_log(
    functions: Functions, work: Workload, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-17, NMO-17a, DRN-13: `taint` logs the added taints once, as JSON in the order of document 002."""
    node, key = work.node(), group.drain_taint
    cordoned = functions.chain(work.maintenance(node, group), "begin", "cordon")
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.answer("taint", cordoned)
        functions.answer("taint", cordoned)

    added = ",".join(f'{{"key":"{each}","effect":"NoSchedule"}}' for each in ("node.kubernetes.io/unschedulable", key))
    assert [record.message for record in caplog.records] == [
        f"Maintenance taints will be added to node {node}",
        f"Taints: [{added}] will be added to node {node}",
        f"Applying {key} taint add on Node: {node}",
        f"Patching taints on Node: {node}",
    ]
