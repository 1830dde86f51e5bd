"""Tests of `label-nodes`, which labels the nodes of a run so that they are not upgraded."""

from __future__ import annotations

from math import inf

import pytest

from eventing import events
from functions.mutex import label_nodes
from kube.mutex.objects import RULE_LABEL, RUN_LABEL, condition, path
from kube.mutex.pools import CLUSTER_VERSIONS
from kube.mutex.versions import VERSION_LABEL, WORKER
from tests.fault_proxy import SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import NEW, OLD, Upgrade
from tests.proofs import proves
from tests.workload import Audit, Workload

LABEL = f"{RULE_LABEL}only.node-upgrade-mutex-operator"


@proves("MUT-35")
def test_each_node_gets_a_label_for_each_rule(upgrade: Upgrade) -> None:
    """Check that each node, even an upgraded one, gets a label for each rule, and the label of the run.

    The event source selects nodes by the run's label.
    """
    upgrade.label(upgrade.nodes[1], {VERSION_LABEL: NEW})
    upgrade.start()
    record = upgrade.status()["record"]
    for name in upgrade.nodes:
        labels = upgrade.node(name)["metadata"]["labels"]
        assert (labels[LABEL], labels[RUN_LABEL]) == ("", record["id"])


@proves("MUT-38", "MUT-35")
def test_a_worker_that_came_since_the_claim_is_named_before_the_canary_would_have_it(
    upgrade: Upgrade, work: Workload
) -> None:
    """Check that a worker that joined after the claim is reported before the canary could select it.

    It is not a node of the run, although it belongs to the target. The same is true of a node that was recreated.
    """
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    late, anew = work.node(), upgrade.nodes[1]
    upgrade.label(late, {WORKER: "", VERSION_LABEL: OLD, "role": "blue"})
    upgrade.remove(anew, anew=True)
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    found = condition(upgrade.again(upgrade.run), "WorkersOutsideTargets")
    assert (found["status"], found["message"].endswith(", ".join(sorted([late, anew])))) == ("True", True)
    assert late not in upgrade.status()["record"]["nodes"]


@proves("C26", "MUT-32")
def test_a_run_that_pauses_early_waits_for_the_control_plane(upgrade: Upgrade, written: Audit) -> None:
    """Check that a run with `pauseEarly` pauses its pools and labels no node before the control plane is upgraded.

    A tick emits no event for it until the ClusterVersion changes.
    """
    upgrade.cvo.want(NEW, "Partial")
    upgrade.admin.patch(path(upgrade.run), {"spec": {"pauseEarly": True}})
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == ""
    ready = condition(upgrade.again(upgrade.run), "UpgradeReady")
    assert (ready["status"], ready["message"]) == ("False", "the update of the control plane is Partial, not Completed")
    assert upgrade.pool("blue")["spec"]["paused"] is True
    assert not [entry for entry in written.writes_by() if entry["objectRef"]["resource"] == "nodes"]
    assert upgrade.told_by_a_tick() == []

    upgrade.cvo.want(NEW, "Completed", OLD)
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.POOLS_PAUSED]
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == ""
    assert upgrade.told_by_a_tick() == []

    upgrade.cvo.want(NEW)
    changed = resource(events.REFERENCE_UPDATED, upgrade.admin.get(f"{CLUSTER_VERSIONS}/version"), "ClusterVersion")
    assert [reply.get_type() for reply in upgrade.told_by(changed)] == [events.POOLS_PAUSED]
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert condition(upgrade.again(upgrade.run), "UpgradeReady")["status"] == "True"


@proves("MUT-32")
def test_a_run_that_waited_for_its_turn_looks_at_the_control_plane_again(upgrade: Upgrade) -> None:
    """Check that a run that waited for its turn checks the control plane again before it labels nodes.

    The control plane was upgraded when the run began, but a later version is desired now.
    """
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    upgrade.cvo.want("4.16.5", "Partial")
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == ""
    ready = condition(upgrade.again(upgrade.run), "UpgradeReady")
    assert (ready["status"], ready["message"]) == ("False", "the update of the control plane is Partial, not Completed")
    assert not any(LABEL in upgrade.node(name)["metadata"]["labels"] for name in upgrade.nodes)
    assert upgrade.told_by_a_tick() == []
    upgrade.cvo.want("4.16.5")
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.POOLS_PAUSED]
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED


@proves("C26")
def test_who_changes_his_mind_amid_the_wait_waits_all_the_same(upgrade: Upgrade) -> None:
    """Check that no node is labelled before the control plane is upgraded, even if `pauseEarly` is unset meanwhile."""
    upgrade.cvo.want(NEW, "Partial")
    upgrade.admin.patch(path(upgrade.run), {"spec": {"pauseEarly": True}})
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    upgrade.admin.patch(path(upgrade.run), {"spec": {"pauseEarly": False}})
    upgrade.answer("check-run", events.RUN_FOUND)
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == ""
    assert LABEL not in upgrade.node(upgrade.nodes[0])["metadata"]["labels"]


@pytest.mark.slow
@proves("MUT-43", "X-2")
def test_a_released_node_is_not_labelled_again(upgrade: Upgrade) -> None:
    """Check that a late event labels the nodes that still wait, and no released node."""
    released = upgrade.release()
    upgrade.label(upgrade.nodes[1], {LABEL: None})
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert LABEL not in upgrade.node(released)["metadata"]["labels"]
    assert LABEL in upgrade.node(upgrade.nodes[1])["metadata"]["labels"]


@proves("MUT-33", "MUT-35", "MUT-1")
@pytest.mark.parametrize("seconds", [0, inf], ids=["there is time", "there is no time for more than some"])
def test_a_node_that_is_refused_keeps_none_of_those_behind_it_from_being_labelled(
    upgrade: Upgrade, spoiled: Functions, faults: Faults, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Check that a rejected node does not keep later nodes from being labelled, and that the condition has the error.

    If the time was too short for all nodes, the tick continues, and the step emits no event to continue at once.
    """
    monkeypatch.setattr(label_nodes, "TOGETHER", 1)
    monkeypatch.setattr(label_nodes, "SECONDS", seconds)
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    faults.spoil(lambda request: Fault(403, "a webhook") if request == "patch nodes 1" else None)
    assert spoiled.answer("label-nodes", upgrade.said(events.POOLS_PAUSED)) is None
    faults.speak_again()

    labelled = [LABEL in upgrade.node(name)["metadata"]["labels"] for name in upgrade.nodes]
    assert labelled == [False, seconds == 0]
    found = condition(upgrade.again(upgrade.run), "MutexRulesApplied")
    assert (found["status"], found["message"]) == ("False", "a webhook")
    assert "labelledAt" not in upgrade.status()["record"]
    monkeypatch.undo()
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED


@proves("MUT-33", "MUT-35", "X-6")
def test_a_node_whose_write_hangs_keeps_none_of_those_behind_it_from_being_labelled(
    upgrade: Upgrade, spoiled: Functions, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a node whose write hangs does not keep later nodes from being labelled.

    The broker redelivers the event, which then labels the remaining nodes.
    """
    monkeypatch.setattr(label_nodes, "TOGETHER", 1)
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade", "claim-pools", "pause-pools")
    faults.spoil(lambda request: SILENCE if request == "patch nodes 1" else None)
    assert spoiled.post("label-nodes", upgrade.said(events.POOLS_PAUSED)).status_code == 503
    faults.speak_again()

    assert [LABEL in upgrade.node(name)["metadata"]["labels"] for name in upgrade.nodes] == [False, True]
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED


@proves("MUT-35")
def test_a_turn_begins_with_the_nodes_that_lack_a_label(upgrade: Upgrade) -> None:
    """Check that a pass selects only nodes that lack a label, so that each pass of a large run labels other nodes."""
    upgrade.start()
    upgrade.label(upgrade.nodes[1], {LABEL: None})

    assert label_nodes.ungated(upgrade.status()["record"], upgrade.functions.clusters["label-nodes"]) == [
        upgrade.nodes[1]
    ]
