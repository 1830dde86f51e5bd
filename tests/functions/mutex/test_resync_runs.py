"""Tests of `resync-runs`, which emits each event that an object waits for, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventing import events
from eventing.events import Reference
from functions.mutex import resync_runs
from kube.maintenance.objects import path as maintenance_path
from kube.mutex.node_labels import is_released
from kube.mutex.objects import LONGEST_MESSAGE, NAMESPACE, RULE, RULE_LABEL, RUN_LABEL, condition, path
from kube.mutex.pools import POOLS, claimed_by, pool_path
from kube.mutex.versions import WORKER
from kube.nodes import LABEL
from kube.paths import Object
from tests.functions.event_builders import resource, tick
from tests.functions.mutex.conftest import BEFORE_JOBS, Upgrade, rule_spec
from tests.functions.serving.test_pass_queue import PATIENCE, Gated
from tests.openshift import pool
from tests.proofs import proves
from tests.workload import Audit, Workload

GATE = f"{RULE_LABEL}only.{NAMESPACE}"
LOST = dict(
    zip(
        BEFORE_JOBS[2:],
        (events.POOLS_CLAIMED, events.POOLS_PAUSED, events.NODES_LABELLED, events.JOB_DUE),
        strict=True,
    )
)
"""Last completed step → the event type that a tick emits next."""
REDONE = {
    "pause-pools": events.POOLS_CLAIMED,
    "label-nodes": events.POOLS_PAUSED,
    "edit-pools": events.NODES_LABELLED,
}
"""Step that repeats an undone change → the event type that triggers it."""


def said(upgrade: Upgrade) -> list[str]:
    """Return the event types that a tick emits."""
    return [reply.get_type() for reply in upgrade.told_by_a_tick()]


@proves("X-3", "X-3a", "MUT-30")
def test_what_was_never_judged_is_found(upgrade: Upgrade) -> None:
    """Check that a tick finds a rule, a target and a run config that existed before the event source."""
    assert sorted(said(upgrade)) == sorted([events.RULE_FOUND, events.TARGET_FOUND, events.RUN_FOUND])
    upgrade.judge()
    assert said(upgrade) == [events.RUN_FOUND]
    upgrade.through("check-run")
    assert said(upgrade) == [events.RUN_VALIDATED]
    upgrade.through("check-run", "detect-upgrade")
    assert said(upgrade) == [events.UPGRADE_FOUND]


@proves("X-3")
@pytest.mark.parametrize("count", range(3, len(BEFORE_JOBS) + 1))
def test_an_event_that_was_lost_is_said_again(upgrade: Upgrade, count: int) -> None:
    """Check that a tick emits the event that was lost after any of the steps before the Jobs."""
    upgrade.judge()
    upgrade.through(*BEFORE_JOBS[:count])
    assert said(upgrade) == [LOST[BEFORE_JOBS[count - 1]]]


@pytest.mark.slow
@proves("X-3", "MUT-42", "MUT-45")
def test_while_a_job_runs_or_a_node_is_upgraded_nothing_is_said(upgrade: Upgrade, written: Audit) -> None:
    """Check that a tick emits nothing while a Job runs or a node is being upgraded, and never writes anything."""
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    assert said(upgrade) == []
    upgrade.end(upgrade.jobs()[-1])
    assert said(upgrade) == [events.JOB_DUE]
    upgrade.answer("run-job", events.JOB_DUE)
    assert said(upgrade) == [events.NODE_CLEARED]
    upgrade.answer("release-node", events.NODE_CLEARED)
    assert said(upgrade) == [events.TARGET_FOUND]  # the node no longer belongs to its pool
    upgrade.judge()
    assert said(upgrade) == []
    upgrade.label(upgrade.nodes[0], {"machineconfiguration.openshift.io/release-image-version": "4.16.4"})
    assert said(upgrade) == [events.NODE_RELEASED]
    assert [entry for entry in written.writes_by() if entry["user"]["username"].endswith(":resync-runs")] == []


@pytest.mark.slow
@proves("X-3", "MUT-35", "MUT-45")
@pytest.mark.parametrize("anew", [False, True])
def test_a_released_node_that_is_gone_is_told(upgrade: Upgrade, anew: bool) -> None:
    """Check that a tick emits the event that drops a released node which was deleted or recreated.

    A recreated node is not part of the run and lacks its label, so no event source reports it. The condition then no
    longer reports what the node waits for.
    """
    name = upgrade.release()
    assert upgrade.answer("await-version", events.NODE_RELEASED) == ""
    upgrade.remove(name, anew=anew)
    assert events.NODE_RELEASED in said(upgrade)
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_CLEANED
    assert "droppedAt" in upgrade.status()["record"]["nodes"][name]
    found = condition(upgrade.again(upgrade.run), "NodeUpgrade")
    assert (found["status"], f"{name}: gone" in found["message"]) == ("True", True)


@proves("MUT-22", "X-3")
def test_a_target_whose_nodes_are_others_is_found(upgrade: Upgrade) -> None:
    """Check that a tick emits `target.found` only if the nodes of a target have changed."""
    upgrade.judge()
    assert events.TARGET_FOUND not in said(upgrade)
    upgrade.label(upgrade.nodes[1], {"role": "green"})
    assert events.TARGET_FOUND in said(upgrade)


@proves("X-3")
def test_a_fault_too_long_for_a_condition_is_said_once(upgrade: Upgrade) -> None:
    """Check that a message too long for a condition is reported once, by comparing its truncated text."""
    upgrade.judge()
    named = [{"name": f"{'long-' * 12}{number}"} for number in range(50)]
    upgrade.admin.patch(path(upgrade.run), {"spec": {"mutexRules": named}})
    upgrade.functions.answer("check-run", upgrade.said(events.RUN_FOUND))
    assert len(condition(upgrade.again(upgrade.run), "ConfigValidated")["message"]) == LONGEST_MESSAGE
    assert said(upgrade) == []


@proves("X-3")
def test_a_record_that_somebody_spoiled_keeps_nobody_else_waiting(upgrade: Upgrade) -> None:
    """Check that a run with a corrupt record does not block other objects and runs.

    The order in the record names a node that the record does not contain.
    """
    upgrade.start()
    order = ["nobody", *upgrade.nodes]
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": {"order": order}}})
    upgrade.create(RULE, "unseen", rule_spec())
    assert said(upgrade) == [events.RULE_FOUND]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "name": "a"}
    assert upgrade.functions.answer("run-job", resource(events.REFERENCE_UPDATED, job, "Job")) is None


def test_a_cluster_without_our_kinds_waits_for_nothing(upgrade: Upgrade) -> None:
    """Design rule 4: Without rules, targets and run configs, a tick emits no event."""
    upgrade.clear()
    assert said(upgrade) == []


@pytest.mark.slow
@proves("X-3")
def test_a_node_is_released_by_the_next_tick_once_nobody_else_maintains_it(upgrade: Upgrade, work: Workload) -> None:
    """Check that a tick emits `node.cleared` only while no maintenance of another requester holds the node.

    A maintenance that the run's own Job requested does not count.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEARED
    own, name = upgrade.status()["record"]["id"], upgrade.nodes[0]
    maintenance = work.maintenance(name)
    upgrade.functions.chain(maintenance, "begin", "cordon")
    assert events.NODE_CLEARED not in said(upgrade)
    upgrade.admin.patch(maintenance_path(maintenance), {"metadata": {"labels": {RUN_LABEL: own}}})
    assert events.NODE_CLEARED in said(upgrade)
    upgrade.admin.patch(maintenance_path(maintenance), {"metadata": {"labels": None}})
    assert events.NODE_CLEARED not in said(upgrade)
    upgrade.label(name, {LABEL: None})
    assert events.NODE_CLEARED in said(upgrade)


def test_what_comes_amid_a_tick_takes_nothing_from_its_answer(upgrade: Upgrade) -> None:
    """Check that an event during a tick's pass does not reduce the tick's reply.

    The event gets its own pass, which emits fewer events than a tick's.
    """
    gated = Gated(resync_runs.LOOKING)
    answer = gated.post(tick())
    gated.await_look()
    hint = gated.post(resource(events.REFERENCE_UPDATED, upgrade.pool("blue"), "MachineConfigPool"))
    gated.await_look()
    gated.end_look(lambda _event: [])
    assert hint.result(PATIENCE) == []
    gated.end_look(lambda event: [events.event(events.RULE_FOUND, "resync-runs", Reference.of(upgrade.rule))], 0)
    assert [reply.get_type() for reply in answer.result(PATIENCE)] == [events.RULE_FOUND]


def failed(upgrade: Upgrade) -> None:
    """Fail the first node's Job, so that the run waits for a user."""
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1], "Failed")
    assert upgrade.answer("run-job", events.JOB_DUE) == events.RUN_STOPPED


def invalid(upgrade: Upgrade) -> None:
    """Delete the rule of the active run, so that the run waits until the rule exists again."""
    upgrade.admin.delete(path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])
    assert upgrade.answer("check-run", events.RUN_FOUND) == ""


def failed_and_spoiled(upgrade: Upgrade) -> None:
    """Fail the first node's Job, and let the run config name a rule that does not exist."""
    failed(upgrade)
    upgrade.admin.patch(path(upgrade.run), {"spec": {"mutexRules": [{"name": "absent"}]}})
    assert upgrade.answer("check-run", events.RUN_FOUND) == ""


@pytest.mark.slow
@proves("MUT-47", "MUT-43", "MUT-36")
@pytest.mark.parametrize("halt", [failed, invalid, failed_and_spoiled])
def test_what_is_undone_while_a_run_is_halted_is_done_again(upgrade: Upgrade, halt: Callable[[Upgrade], None]) -> None:
    """Check that the run's changes are repeated if a user undoes them while the run is halted.

    Here the user applies a pool's original manifest and removes a node's labels. Without the repetition, nodes would be
    upgraded without their Jobs.
    """
    upgrade.start()
    halt(upgrade)
    amid = {name: upgrade.pool(name)["spec"] for name in upgrade.before}
    own = {"spec": {"paused": False, "nodeSelector": {"matchExpressions": None}}}
    blue = upgrade.admin.patch(pool_path("blue"), own)
    upgrade.label(upgrade.nodes[1], {GATE: None})

    hint = resource(events.REFERENCE_UPDATED, blue, "MachineConfigPool")
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == [events.POOLS_CLAIMED, events.POOLS_PAUSED]
    for step, kind in REDONE.items():
        assert said(upgrade)[0] == kind
        assert upgrade.answer(step, kind) == ""

    assert {name: upgrade.pool(name)["spec"] for name in upgrade.before} == amid
    assert not is_released(upgrade.node(upgrade.nodes[1]))
    assert said(upgrade) == []


@pytest.mark.slow
@proves("MUT-35", "MUT-36", "MUT-47")
def test_a_node_that_was_made_anew_keeps_no_selector_of_a_halted_run_undone(upgrade: Upgrade) -> None:
    """Check that a recreated node does not keep a halted run from editing a selector again.

    The node is not part of the run and gets no labels. The run drops it when a user resumes it.
    """
    upgrade.start()
    failed(upgrade)
    upgrade.remove(upgrade.nodes[0], anew=True)
    upgrade.judge()
    assert said(upgrade) == []
    upgrade.admin.patch(pool_path("blue"), {"spec": {"nodeSelector": {"matchExpressions": None}}})
    upgrade.judge()
    assert said(upgrade) == [events.NODES_LABELLED]


@proves("MUT-42", "MUT-43", "X-3")
def test_what_is_undone_keeps_no_end_of_a_job_untold(upgrade: Upgrade) -> None:
    """Check that the end of a Job is still reported while an undone change waits to be repeated.

    A webhook may reject that repetition forever. The event for selectors follows only when all labels are set.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1])
    upgrade.label(upgrade.nodes[1], {GATE: None})
    upgrade.admin.patch(pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}})
    told = said(upgrade)
    assert told == [events.TARGET_FOUND, events.POOLS_PAUSED, events.JOB_DUE]  # the node no longer belongs to its pool


@proves("MUT-33", "MUT-36", "X-3")
def test_a_pool_that_is_undone_once_more_within_seconds_waits_for_the_tick(upgrade: Upgrade) -> None:
    """Check that a pool that another client changes again within seconds waits for the tick; other changes do not.

    Otherwise the repairs would follow a controller's changes as fast as events travel.
    """
    upgrade.start()
    own, where = {"spec": {"paused": False}}, pool_path("blue")
    hint = resource(events.REFERENCE_UPDATED, upgrade.admin.patch(where, own), "MachineConfigPool")
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == [events.POOLS_CLAIMED]
    assert upgrade.answer("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    upgrade.admin.patch(where, own)
    assert upgrade.told_by(hint) == []
    assert said(upgrade) == [events.POOLS_CLAIMED, events.JOB_DUE]

    upgrade.admin.patch(pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}})
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == [events.NODES_LABELLED]
    upgrade.answer("edit-pools", events.NODES_LABELLED)
    upgrade.admin.patch(where, {"spec": {"nodeSelector": {"matchExpressions": None}}})
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == [events.NODES_LABELLED]
    upgrade.write_record({"pausedAgain": {"blue": "2026-01-01T00:00:00Z"}})
    told = [events.POOLS_CLAIMED, events.NODES_LABELLED]
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == told


@proves("MUT-33", "MUT-36", "X-3")
@pytest.mark.parametrize(
    ("step", "owner", "own"),
    [
        ("pause-pools", "gone", {"paused": False}),
        ("edit-pools", None, {"nodeSelector": {"matchExpressions": None}}),
    ],
)
def test_a_claim_that_was_lost_a_moment_ago_keeps_no_pause_and_no_selector_waiting(
    upgrade: Upgrade, step: str, owner: str | None, own: Object
) -> None:
    """Check that a claim that was repaired a moment ago does not delay the repair of a pause or a selector.

    A user may have applied a backup of the pool. If only the claim is lost again within seconds, it waits for the tick.
    """
    upgrade.start()
    where, lost, kind = pool_path("blue"), {"metadata": {"annotations": {RUN_LABEL: owner}}}, REDONE[step]
    hint = resource(events.REFERENCE_UPDATED, upgrade.admin.patch(where, lost), "MachineConfigPool")
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == [events.POOLS_CLAIMED]
    upgrade.answer(step, kind)
    assert claimed_by(upgrade.pool("blue")) == upgrade.run["metadata"]["uid"]
    upgrade.admin.patch(where, lost)
    assert upgrade.told_by(hint) == []
    assert events.POOLS_CLAIMED in said(upgrade)

    upgrade.admin.patch(where, {"spec": own})
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == [kind]
    upgrade.answer(step, kind)
    upgrade.admin.patch(where, {**lost, "spec": own})
    assert upgrade.told_by(hint) == []


@pytest.mark.slow
@proves("MUT-33", "MUT-36", "X-3")
def test_what_is_undone_does_not_wait_until_the_run_config_is_judged(upgrade: Upgrade) -> None:
    """Check that undone changes are repeated before a changed run config was checked.

    The check may be rejected forever. Until it succeeds, no other event of the run is emitted.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1])
    upgrade.admin.patch(path(upgrade.run), {"spec": {"pauseEarly": True}})
    own = {"spec": {"paused": False, "nodeSelector": {"matchExpressions": None}}}
    blue = upgrade.admin.patch(pool_path("blue"), own)
    undone = [events.RUN_FOUND, events.POOLS_CLAIMED, events.NODES_LABELLED]
    assert said(upgrade) == undone
    hint = resource(events.REFERENCE_UPDATED, blue, "MachineConfigPool")
    assert [reply.get_type() for reply in upgrade.told_by(hint)] == undone


@proves("MUT-33", "MUT-51", "X-3")
def test_a_finalizer_that_is_off_keeps_no_pool_from_being_paused_again(upgrade: Upgrade) -> None:
    """Check that a missing finalizer does not delay the pause of a pool, because its write may be rejected forever."""
    upgrade.start()
    upgrade.admin.patch(path(upgrade.run), {"metadata": {"finalizers": None}})
    upgrade.unpause("blue")
    assert said(upgrade) == [events.UPGRADE_FOUND, events.POOLS_CLAIMED, events.JOB_DUE]


@pytest.mark.slow
@proves("MUT-43", "X-3")
def test_a_node_is_released_when_nothing_is_undone_any_more(upgrade: Upgrade) -> None:
    """Check that a tick does not release a node while a pool of the run is unpaused.

    Another node could be upgraded at the same time.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEARED
    upgrade.unpause("blue")
    assert said(upgrade) == [events.POOLS_CLAIMED]


@proves("MUT-47")
def test_a_halted_run_goes_no_further_than_it_was(upgrade: Upgrade) -> None:
    """Check that late events of earlier steps do not advance a halted run."""
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade", "claim-pools")
    invalid(upgrade)
    for step, kind in REDONE.items():
        assert upgrade.answer(step, kind) == ""
    assert upgrade.pool("blue")["spec"] == upgrade.before["blue"]
    assert "turnAt" not in upgrade.status()["record"]
    assert said(upgrade) == []


def retargeted(upgrade: Upgrade) -> None:
    """Let the target name another pool."""
    upgrade.admin.create(POOLS, pool("green", {WORKER: "", "role": "blue"}))
    upgrade.admin.patch(path(upgrade.target), {"spec": {"machineConfigPools": ["green"]}})


def without_its_rule(upgrade: Upgrade) -> None:
    """Delete the rule, so that the run config is not valid any more."""
    upgrade.admin.delete(path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])


@proves("MUT-44", "X-3")
@pytest.mark.parametrize("change", [retargeted, without_its_rule])
def test_a_claim_that_no_run_came_of_is_given_back(upgrade: Upgrade, change: Callable[[Upgrade], None]) -> None:
    """Check that a claim is removed if its run config changed before a run began.

    Only the first pool could be claimed. After the removal, no other run waits for that pool.
    """
    upgrade.judge()
    upgrade.through("check-run", "detect-upgrade")
    upgrade.admin.patch(pool_path("blue"), {"metadata": {"annotations": {RUN_LABEL: upgrade.run["metadata"]["uid"]}}})
    assert said(upgrade) == [events.UPGRADE_FOUND]
    change(upgrade)
    upgrade.judge()
    upgrade.answer("check-run", events.RUN_FOUND)

    assert events.RUN_ENDED in said(upgrade)
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert claimed_by(upgrade.pool("blue")) == ""
    assert events.RUN_ENDED not in said(upgrade)
