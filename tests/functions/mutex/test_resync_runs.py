"""Tests for `resync-runs`, which emits exactly the events that mutex objects wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventing import events
from eventing.events import ObjectReference
from functions.app import FUNCTIONS
from kube.maintenance.objects import build_path as build_maintenance_path
from kube.mutex.nodes import is_released
from kube.mutex.objects import (
    DEFAULT_NAMESPACE,
    MAX_MESSAGE_CHARACTERS,
    RULE_KIND,
    RULE_LABEL_PREFIX,
    RUN_LABEL,
    build_object_path,
    get_condition,
)
from kube.mutex.pools import POOLS_PATH, build_pool_path, get_claim_uid
from kube.mutex.versions import WORKER_LABEL
from kube.nodes import MAINTENANCE_LABEL
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.simulators.openshift import build_pool
from tests.functions.event_builders import build_resource_event, build_tick
from tests.functions.mutex.conftest import BEFORE_JOBS, UpgradeScenario, build_rule_spec
from tests.functions.test_work_queue import TIMEOUT_SECONDS, ControlledStep
from tests.proofs import proves
from tests.workload import Workload

RULE_NODE_LABEL = f"{RULE_LABEL_PREFIX}only.{DEFAULT_NAMESPACE}"
NEXT_EVENT_BY_LAST_STEP = dict(
    zip(
        BEFORE_JOBS[2:],
        (events.POOLS_CLAIMED, events.POOLS_PAUSED, events.NODES_LABELLED, events.JOB_DUE),
        strict=True,
    )
)
"""Map from last completed step to type of the event that a tick emits next."""
TRIGGER_BY_REPAIR_STEP = {
    "pause-pools": events.POOLS_CLAIMED,
    "label-nodes": events.POOLS_PAUSED,
    "edit-pools": events.NODES_LABELLED,
}
"""Map from step that repeats a change that another client undid to type of the event that triggers the step."""


def list_tick_event_types(upgrade: UpgradeScenario) -> list[str]:
    """Return the types of the events that `resync-runs` emits at a tick."""
    return [reply.get_type() for reply in upgrade.resync_by_tick()]


@proves("X-3", "X-3a", "MUT-30")
def test_tick_emits_check_events_for_unchecked_objects(upgrade: UpgradeScenario) -> None:
    """Check that a tick emits check events for a rule, a target and a run config older than the event source."""
    assert sorted(list_tick_event_types(upgrade)) == sorted(
        [events.RULE_CHECK_PENDING, events.TARGET_CHECK_PENDING, events.RUN_CHECK_PENDING]
    )
    upgrade.check_rule_and_target()
    assert list_tick_event_types(upgrade) == [events.RUN_CHECK_PENDING]
    upgrade.run_steps("check-run")
    assert list_tick_event_types(upgrade) == [events.RUN_VALIDATED]
    upgrade.run_steps("check-run", "detect-upgrade")
    assert list_tick_event_types(upgrade) == [events.UPGRADE_DETECTED]


@proves("X-3")
@pytest.mark.parametrize("step_count", range(3, len(BEFORE_JOBS) + 1))
def test_event_lost_after_any_step_before_jobs_is_emitted_again(upgrade: UpgradeScenario, step_count: int) -> None:
    """Check that if the reply of a step before the Jobs is lost, a tick emits the same event."""
    upgrade.check_rule_and_target()
    upgrade.run_steps(*BEFORE_JOBS[:step_count])
    assert list_tick_event_types(upgrade) == [NEXT_EVENT_BY_LAST_STEP[BEFORE_JOBS[step_count - 1]]]


@pytest.mark.slow
@proves("X-3", "MUT-42", "MUT-45")
def test_tick_emits_nothing_during_job_or_upgrade(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """Check that a tick emits nothing while a Job runs or a node is being upgraded, and writes nothing."""
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    assert list_tick_event_types(upgrade) == []
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert list_tick_event_types(upgrade) == [events.JOB_DUE]
    upgrade.run_step("run-job", events.JOB_DUE)
    assert list_tick_event_types(upgrade) == [events.NODE_PREJOBS_DONE]
    upgrade.run_step("release-node", events.NODE_PREJOBS_DONE)
    # The released node no longer belongs to its target pool.
    assert list_tick_event_types(upgrade) == [events.TARGET_CHECK_PENDING]
    upgrade.check_rule_and_target()
    assert list_tick_event_types(upgrade) == []
    upgrade.patch_node_labels(upgrade.nodes[0], {"machineconfiguration.openshift.io/release-image-version": "4.16.4"})
    assert list_tick_event_types(upgrade) == [events.NODE_RELEASED]
    assert [
        entry for entry in audit_after_setup.list_writes_by() if entry["user"]["username"].endswith(":resync-runs")
    ] == []


@pytest.mark.slow
@proves("X-3", "MUT-35", "MUT-45")
@pytest.mark.parametrize("recreate", [False, True])
def test_tick_emits_event_for_deleted_released_node(upgrade: UpgradeScenario, recreate: bool) -> None:
    """Check that a tick emits the event that removes a deleted or recreated released node from the run.

    A recreated node is not part of the run and does not have the run's label, so no event source reports it. After the
    removal, the condition no longer reports what the node waits for.
    """
    name = upgrade.advance_to_release()
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == ""
    upgrade.delete_node(name, recreate=recreate)
    assert events.NODE_RELEASED in list_tick_event_types(upgrade)
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_DONE
    assert "droppedAt" in upgrade.read_status()["record"]["nodes"][name]
    condition = get_condition(upgrade.read_object(upgrade.run_config), "NodeUpgrade")
    assert (condition["status"], f"{name}: the node no longer exists" in condition["message"]) == ("True", True)


@proves("MUT-22", "X-3")
def test_tick_emits_check_event_for_target_with_changed_nodes(upgrade: UpgradeScenario) -> None:
    """Check that a tick emits `target.check_pending` only if the nodes of a target have changed."""
    upgrade.check_rule_and_target()
    assert events.TARGET_CHECK_PENDING not in list_tick_event_types(upgrade)
    upgrade.patch_node_labels(upgrade.nodes[1], {"role": "green"})
    assert events.TARGET_CHECK_PENDING in list_tick_event_types(upgrade)


@proves("X-3")
def test_truncated_message_is_reported_once(upgrade: UpgradeScenario) -> None:
    """Check that a message that is too long for a condition is truncated and written only once."""
    upgrade.check_rule_and_target()
    rules = [{"name": f"{'long-' * 12}{number}"} for number in range(50)]
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"spec": {"mutexRules": rules}})
    upgrade.functions.invoke("check-run", upgrade.build_event(events.RUN_CHECK_PENDING))
    assert (
        len(get_condition(upgrade.read_object(upgrade.run_config), "ConfigValidated")["message"])
        == MAX_MESSAGE_CHARACTERS
    )
    assert list_tick_event_types(upgrade) == []


@proves("X-3")
def test_corrupt_record_does_not_block_other_objects(upgrade: UpgradeScenario) -> None:
    """Check that a run with a corrupt record does not block other objects and runs.

    The node order in the record names a node that the record does not contain.
    """
    upgrade.advance_to_jobs()
    order = ["nobody", *upgrade.nodes]
    upgrade.administrator_client.patch(
        f"{build_object_path(upgrade.run_config)}/status", {"status": {"record": {"order": order}}}
    )
    upgrade.create_object(RULE_KIND, "unseen", build_rule_spec())
    assert list_tick_event_types(upgrade) == [events.RULE_CHECK_PENDING]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "name": "a"}
    assert upgrade.functions.invoke("run-job", build_resource_event(events.REFERENCE_UPDATED, job, "Job")) is None


def test_tick_without_objects_emits_nothing(upgrade: UpgradeScenario) -> None:
    """Design rule 4: On a cluster without rules, targets and run configs, a tick emits no event."""
    upgrade.delete_all()
    assert list_tick_event_types(upgrade) == []


@pytest.mark.slow
@proves("X-3")
def test_tick_releases_node_after_other_maintenance(upgrade: UpgradeScenario, workload: Workload) -> None:
    """Check that a tick emits `node.prejobs_done` only while the node has no maintenance of another requester.

    A maintenance that the run's own Job requested does not count.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_PREJOBS_DONE
    run_id, name = upgrade.read_status()["record"]["id"], upgrade.nodes[0]
    maintenance = workload.create_maintenance(name)
    upgrade.functions.run_chain(maintenance, "begin", "cordon")
    assert events.NODE_PREJOBS_DONE not in list_tick_event_types(upgrade)
    upgrade.administrator_client.patch(
        build_maintenance_path(maintenance), {"metadata": {"labels": {RUN_LABEL: run_id}}}
    )
    assert events.NODE_PREJOBS_DONE in list_tick_event_types(upgrade)
    upgrade.administrator_client.patch(build_maintenance_path(maintenance), {"metadata": {"labels": None}})
    assert events.NODE_PREJOBS_DONE not in list_tick_event_types(upgrade)
    upgrade.patch_node_labels(name, {MAINTENANCE_LABEL: None})
    assert events.NODE_PREJOBS_DONE in list_tick_event_types(upgrade)


def test_event_during_pass_of_tick_does_not_change_reply_to_tick(upgrade: UpgradeScenario) -> None:
    """Check that a tick's reply stays complete if another event arrives during the tick's pass.

    The other event starts its own pass, which emits fewer events than the tick's pass.
    """
    controlled_step = ControlledStep(FUNCTIONS["resync-runs"].coalescing)
    tick_reply = controlled_step.post(build_tick())
    controlled_step.wait_for_pass()
    hint_reply = controlled_step.post(
        build_resource_event(events.REFERENCE_UPDATED, upgrade.read_pool("blue"), "MachineConfigPool")
    )
    controlled_step.wait_for_pass()
    controlled_step.finish_pass(lambda _event: [])
    assert hint_reply.result(TIMEOUT_SECONDS) == []
    controlled_step.finish_pass(
        lambda event: [
            events.build_event(events.RULE_CHECK_PENDING, "resync-runs", ObjectReference.from_object(upgrade.rule))
        ],
        0,
    )
    assert [reply.get_type() for reply in tick_reply.result(TIMEOUT_SECONDS)] == [events.RULE_CHECK_PENDING]


def fail_first_job(upgrade: UpgradeScenario) -> None:
    """Let the first node's Job fail, so that the run waits for a user."""
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.end_job(upgrade.list_jobs()[-1], "Failed")
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.RUN_HALTED


def delete_rule(upgrade: UpgradeScenario) -> None:
    """Delete the active run's MutexRule, so that the run waits until the rule exists again."""
    upgrade.administrator_client.delete(build_object_path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == ""


def fail_job_and_invalidate_run_config(upgrade: UpgradeScenario) -> None:
    """Let the first node's Job fail, and make the run config name a rule that does not exist."""
    fail_first_job(upgrade)
    upgrade.administrator_client.patch(
        build_object_path(upgrade.run_config), {"spec": {"mutexRules": [{"name": "absent"}]}}
    )
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == ""


@pytest.mark.slow
@proves("MUT-47", "MUT-43", "MUT-36")
@pytest.mark.parametrize("halt", [fail_first_job, delete_rule, fail_job_and_invalidate_run_config])
def test_changes_that_user_undid_in_halted_run_are_repeated(
    upgrade: UpgradeScenario, halt: Callable[[UpgradeScenario], None]
) -> None:
    """Check that a halted run's changes are repeated after a user undid them.

    In this test, the user applies a pool's original manifest and removes a node's labels. If the changes were not
    repeated, nodes would be upgraded without their Jobs.
    """
    upgrade.advance_to_jobs()
    halt(upgrade)
    edited_specs = {name: upgrade.read_pool(name)["spec"] for name in upgrade.original_pool_specs}
    original_fields = {"spec": {"paused": False, "nodeSelector": {"matchExpressions": None}}}
    blue = upgrade.administrator_client.patch(build_pool_path("blue"), original_fields)
    upgrade.patch_node_labels(upgrade.nodes[1], {RULE_NODE_LABEL: None})

    hint = build_resource_event(events.REFERENCE_UPDATED, blue, "MachineConfigPool")
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == [events.POOLS_CLAIMED, events.POOLS_PAUSED]
    for step, event_type in TRIGGER_BY_REPAIR_STEP.items():
        assert list_tick_event_types(upgrade)[0] == event_type
        assert upgrade.run_step(step, event_type) == ""

    assert {name: upgrade.read_pool(name)["spec"] for name in upgrade.original_pool_specs} == edited_specs
    assert not is_released(upgrade.read_node(upgrade.nodes[1]))
    assert list_tick_event_types(upgrade) == []


@pytest.mark.slow
@proves("MUT-35", "MUT-36", "MUT-47")
def test_recreated_node_does_not_block_selector_repair_of_halted_run(upgrade: UpgradeScenario) -> None:
    """Check that a recreated node does not keep a halted run from repairing a pool's selector.

    The recreated node is not part of the run and gets no labels. The node is dropped when a user resumes the run.
    """
    upgrade.advance_to_jobs()
    fail_first_job(upgrade)
    upgrade.delete_node(upgrade.nodes[0], recreate=True)
    upgrade.check_rule_and_target()
    assert list_tick_event_types(upgrade) == []
    upgrade.administrator_client.patch(build_pool_path("blue"), {"spec": {"nodeSelector": {"matchExpressions": None}}})
    upgrade.check_rule_and_target()
    assert list_tick_event_types(upgrade) == [events.NODES_LABELLED]


@proves("MUT-42", "MUT-43", "X-3")
def test_change_undone_by_other_client_does_not_hide_end_of_job(upgrade: UpgradeScenario) -> None:
    """Check that the end of a Job is still reported while a change that another client undid is not repeated yet.

    An admission webhook may reject that change forever. The event that makes a step repair the selectors follows only
    after all labels are set.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.end_job(upgrade.list_jobs()[-1])
    upgrade.patch_node_labels(upgrade.nodes[1], {RULE_NODE_LABEL: None})
    upgrade.administrator_client.patch(
        build_pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}}
    )
    tick_events = list_tick_event_types(upgrade)
    assert tick_events == [
        events.TARGET_CHECK_PENDING,  # The node without the label no longer belongs to its target pool.
        events.POOLS_PAUSED,
        events.JOB_DUE,
    ]


@proves("MUT-33", "MUT-36", "X-3")
def test_pool_changed_again_within_seconds_waits_for_tick(upgrade: UpgradeScenario) -> None:
    """Check that a MachineConfigPool that another client changes again within seconds is repaired at the next tick.

    Otherwise the run and the other client would overwrite each other in a fast loop. Changes of other fields or pools
    are repaired immediately.
    """
    upgrade.advance_to_jobs()
    unpause, path = {"spec": {"paused": False}}, build_pool_path("blue")
    hint = build_resource_event(
        events.REFERENCE_UPDATED, upgrade.administrator_client.patch(path, unpause), "MachineConfigPool"
    )
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == [events.POOLS_CLAIMED]
    assert upgrade.run_step("pause-pools", events.POOLS_CLAIMED) == events.POOLS_PAUSED
    upgrade.administrator_client.patch(path, unpause)
    assert upgrade.resync_by_hint(hint) == []
    assert list_tick_event_types(upgrade) == [events.POOLS_CLAIMED, events.JOB_DUE]

    upgrade.administrator_client.patch(
        build_pool_path("canary"), {"spec": {"nodeSelector": {"matchExpressions": None}}}
    )
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == [events.NODES_LABELLED]
    upgrade.run_step("edit-pools", events.NODES_LABELLED)
    upgrade.administrator_client.patch(path, {"spec": {"nodeSelector": {"matchExpressions": None}}})
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == [events.NODES_LABELLED]
    upgrade.write_record({"pausedAgain": {"blue": "2026-01-01T00:00:00Z"}})
    expected_events = [events.POOLS_CLAIMED, events.NODES_LABELLED]
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == expected_events


@proves("MUT-33", "MUT-36", "X-3")
@pytest.mark.parametrize(
    ("step", "claim_uid", "original_fields"),
    [
        ("pause-pools", "gone", {"paused": False}),
        ("edit-pools", None, {"nodeSelector": {"matchExpressions": None}}),
    ],
)
def test_recently_lost_claim_does_not_delay_other_repairs(
    upgrade: UpgradeScenario, step: str, claim_uid: str | None, original_fields: Object
) -> None:
    """Check that a claim that has just been repaired does not delay the repair of a pause or a selector.

    A user may have applied a backup of the pool. If only the claim is lost again within seconds, its repair waits for
    the next tick.
    """
    upgrade.advance_to_jobs()
    path, invalid_claim, event_type = (
        build_pool_path("blue"),
        {"metadata": {"annotations": {RUN_LABEL: claim_uid}}},
        TRIGGER_BY_REPAIR_STEP[step],
    )
    hint = build_resource_event(
        events.REFERENCE_UPDATED, upgrade.administrator_client.patch(path, invalid_claim), "MachineConfigPool"
    )
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == [events.POOLS_CLAIMED]
    upgrade.run_step(step, event_type)
    assert get_claim_uid(upgrade.read_pool("blue")) == upgrade.run_config["metadata"]["uid"]
    upgrade.administrator_client.patch(path, invalid_claim)
    assert upgrade.resync_by_hint(hint) == []
    assert events.POOLS_CLAIMED in list_tick_event_types(upgrade)

    upgrade.administrator_client.patch(path, {"spec": original_fields})
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == [event_type]
    upgrade.run_step(step, event_type)
    upgrade.administrator_client.patch(path, {**invalid_claim, "spec": original_fields})
    assert upgrade.resync_by_hint(hint) == []


@pytest.mark.slow
@proves("MUT-33", "MUT-36", "X-3")
def test_changes_undone_by_other_client_are_repeated_before_run_config_is_checked(upgrade: UpgradeScenario) -> None:
    """Check that changes that another client undid are repeated even before a changed run config is checked.

    The check may be rejected forever. Until it succeeds, no other event of the run is emitted.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.end_job(upgrade.list_jobs()[-1])
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"spec": {"pauseEarly": True}})
    original_fields = {"spec": {"paused": False, "nodeSelector": {"matchExpressions": None}}}
    blue = upgrade.administrator_client.patch(build_pool_path("blue"), original_fields)
    expected_events = [events.RUN_CHECK_PENDING, events.POOLS_CLAIMED, events.NODES_LABELLED]
    assert list_tick_event_types(upgrade) == expected_events
    hint = build_resource_event(events.REFERENCE_UPDATED, blue, "MachineConfigPool")
    assert [reply.get_type() for reply in upgrade.resync_by_hint(hint)] == expected_events


@proves("MUT-33", "MUT-51", "X-3")
def test_missing_finalizer_does_not_delay_pause(upgrade: UpgradeScenario) -> None:
    """Check that a missing finalizer that the API server may reject forever does not delay the pause of a pool."""
    upgrade.advance_to_jobs()
    upgrade.administrator_client.patch(build_object_path(upgrade.run_config), {"metadata": {"finalizers": None}})
    upgrade.unpause("blue")
    assert list_tick_event_types(upgrade) == [events.UPGRADE_DETECTED, events.POOLS_CLAIMED, events.JOB_DUE]


@pytest.mark.slow
@proves("MUT-43", "X-3")
def test_node_is_not_released_while_pool_is_unpaused(upgrade: UpgradeScenario) -> None:
    """Check that a tick does not release a node while a pool of the run is unpaused.

    Another node could be upgraded at the same time.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_PREJOBS_DONE
    upgrade.unpause("blue")
    assert list_tick_event_types(upgrade) == [events.POOLS_CLAIMED]


@proves("MUT-47")
def test_halted_run_makes_no_progress(upgrade: UpgradeScenario) -> None:
    """Check that late events that earlier steps emitted do not advance a halted run."""
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade", "claim-pools")
    delete_rule(upgrade)
    for step, event_type in TRIGGER_BY_REPAIR_STEP.items():
        assert upgrade.run_step(step, event_type) == ""
    assert upgrade.read_pool("blue")["spec"] == upgrade.original_pool_specs["blue"]
    assert "turnAt" not in upgrade.read_status()["record"]
    assert list_tick_event_types(upgrade) == []


def change_target_pool(upgrade: UpgradeScenario) -> None:
    """Change the pool that the target refers to."""
    upgrade.administrator_client.create(POOLS_PATH, build_pool("green", {WORKER_LABEL: "", "role": "blue"}))
    upgrade.administrator_client.patch(build_object_path(upgrade.target), {"spec": {"machineConfigPools": ["green"]}})


def delete_rule_of_run_config(upgrade: UpgradeScenario) -> None:
    """Delete the MutexRule that the run config names, so that the run config is no longer valid."""
    upgrade.administrator_client.delete(build_object_path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])


@proves("MUT-44", "X-3")
@pytest.mark.parametrize("change", [change_target_pool, delete_rule_of_run_config])
def test_claim_of_pool_without_run_is_removed(
    upgrade: UpgradeScenario, change: Callable[[UpgradeScenario], None]
) -> None:
    """Check that the claim of a pool is removed if its run config changed before a run began.

    The run config had claimed only its first pool. After the removal, no other run waits for that pool.
    """
    upgrade.check_rule_and_target()
    upgrade.run_steps("check-run", "detect-upgrade")
    upgrade.administrator_client.patch(
        build_pool_path("blue"), {"metadata": {"annotations": {RUN_LABEL: upgrade.run_config["metadata"]["uid"]}}}
    )
    assert list_tick_event_types(upgrade) == [events.UPGRADE_DETECTED]
    change(upgrade)
    upgrade.check_rule_and_target()
    upgrade.run_step("check-run", events.RUN_CHECK_PENDING)

    assert events.RUN_RESTORE_PENDING in list_tick_event_types(upgrade)
    assert upgrade.run_step("restore-pools", events.RUN_RESTORE_PENDING) == events.RUN_RESTORED
    assert get_claim_uid(upgrade.read_pool("blue")) == ""
    assert events.RUN_RESTORE_PENDING not in list_tick_event_types(upgrade)
