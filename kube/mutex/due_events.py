"""Determines the events that rules, targets and runs wait for, so that `resync` can re-emit lost events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Enum

from kube.mutex import claims, node_labels, run_record, validation, versions, wait_checks
from kube.mutex.objects import (
    MAX_MESSAGE_CHARACTERS,
    Condition,
    Resource,
    get_condition,
    get_status,
    has_finalizer,
    is_condition_true,
    is_deleting,
)
from kube.mutex.run_record import Stage, get_current_node, get_record, is_active
from kube.mutex.run_snapshot import RunSnapshot

TICK_SECONDS, TICKS_PER_FULL_CHECK = 15, 40
"""Seconds between two ticks, and number of ticks in ten minutes.

Every ten minutes, the tick checks each object, whatever the object's status reports (MUT-30).
"""


class DueEvent(Enum):
    """Event that an object may be waiting for."""

    RULE_CHECK_PENDING = "rule.check_pending"
    TARGET_CHECK_PENDING = "target.check_pending"
    RUN_CHECK_PENDING = "run.check_pending"
    RUN_VALIDATED = "run.validated"
    UPGRADE_DETECTED = "upgrade.detected"
    POOLS_CLAIMED = "pools.claimed"
    POOLS_PAUSED = "pools.paused"
    NODES_LABELLED = "nodes.labelled"
    JOB_DUE = "job.due"
    NODE_PREJOBS_DONE = "node.prejobs_done"
    NODE_RELEASED = "node.released"
    RUN_NODES_DONE = "run.nodes_done"
    RUN_RESTORE_PENDING = "run.restore_pending"


DUE_EVENT_OF_STAGE = {
    Stage.CLAIMED: DueEvent.POOLS_CLAIMED,
    Stage.PAUSED: DueEvent.POOLS_PAUSED,
    Stage.LABELLED: DueEvent.NODES_LABELLED,
    Stage.JOBS: DueEvent.JOB_DUE,
    Stage.PREJOBS_DONE: DueEvent.NODE_PREJOBS_DONE,
    Stage.RELEASED: DueEvent.NODE_RELEASED,
    Stage.CLEANUP: DueEvent.JOB_DUE,
    Stage.NODES_DONE: DueEvent.RUN_NODES_DONE,
}
"""Stage of a run → the event that continues the run."""
WAITING_STAGES = (Stage.JOBS, Stage.RELEASED, Stage.CLEANUP)
"""Stages that wait for a Job or an upgrade to end.

The event of such a stage is emitted even if other clients' changes are not undone yet, because the API server may
refuse to undo these changes forever. In all other stages, the run waits until the changes are undone.
"""


CORRECTION_CHECKS = {
    DueEvent.POOLS_CLAIMED: (("paused", claims.are_pools_paused), ("claimed", claims.are_pools_claimed)),
    DueEvent.NODES_LABELLED: (("edited", claims.are_pools_edited),),
}
"""Event that corrects pools → for each correction, its name in the record and the check whether it is in place."""


def is_full_check_due(uid: str, now: datetime) -> bool:
    """Return whether this tick is the one in ten minutes that checks the object unconditionally."""
    return (
        int(now.timestamp() // TICK_SECONDS) % TICKS_PER_FULL_CHECK
        == int(uid.replace("-", "")[:8] or "0", 16) % TICKS_PER_FULL_CHECK
    )


def find_due_events_of_rule(rule: Resource, now: datetime) -> list[DueEvent]:
    """Return the event for a rule whose current generation is not validated yet.

    An invalid rule is also checked every ten minutes, because its namespace may have been created since the last check.
    """
    condition = get_condition(rule, validation.VALID_CONFIG_CONDITION)
    if is_deleting(rule):
        return []
    is_check_due = condition.get("status") != "True" and is_full_check_due(rule["metadata"]["uid"], now)
    return [] if validation.is_validated(rule) and not is_check_due else [DueEvent.RULE_CHECK_PENDING]


def find_due_events_of_target(target: Resource, snapshot: RunSnapshot) -> list[DueEvent]:
    """Return the event for a target whose nodes or conditions differ from its status (MUT-22)."""
    if is_deleting(target):
        return []
    target_state = validation.compute_target_state(target, snapshot.pools, snapshot.nodes.values())
    is_reported = get_status(target).get("nodes") == target_state.node_names and not _are_conditions_outdated(
        target, target_state.conditions
    )
    return [] if is_reported else [DueEvent.TARGET_CHECK_PENDING]


def _are_conditions_outdated(obj: Resource, conditions: list[Condition]) -> bool:
    """Return whether a reported condition differs from the desired condition, or its generation is not current."""
    reported_conditions = [get_condition(obj, condition.condition_type) for condition in conditions]
    return any(
        (reported.get("status"), reported.get("message"))
        != (str(condition.holds), condition.message[:MAX_MESSAGE_CHARACTERS])
        or reported.get("observedGeneration") != obj["metadata"].get("generation")
        for reported, condition in zip(reported_conditions, conditions, strict=True)
    )


def find_due_events_of_run(
    run: Resource, snapshot: RunSnapshot, runs: Sequence[Resource], now: datetime, timeout_seconds: float
) -> list[DueEvent]:
    """Return the events that a run config waits for and that no function will emit.

    Only an active run can wait for several events. Changes by other clients are undone even if the run config still has
    to be validated, because validation may fail forever. `timeout_seconds` is the time in seconds that a released node
    has for its upgrade.
    """
    if is_deleting(run):
        return [DueEvent.RUN_RESTORE_PENDING] if has_finalizer(run) else []
    if has_unprocessed_change(run) or _are_conditions_outdated(run, [validation.build_config_condition(run, snapshot)]):
        return [DueEvent.RUN_CHECK_PENDING, *(find_drift(run, snapshot) if is_active(run) else [])]
    if is_active(run):
        return find_due_events_of_active_run(run, snapshot, now, timeout_seconds)
    if not is_condition_true(run, validation.CONFIG_VALIDATED_CONDITION):
        return (
            [DueEvent.RUN_RESTORE_PENDING]
            if claims.select_claimed_pools(run["metadata"]["uid"], snapshot.pools.values())
            else []
        )
    return _find_due_events_of_idle_run(run, snapshot, runs, now)


def has_unprocessed_change(run: Resource) -> bool:
    """Return whether a user made a change that is not processed yet.

    A stopped run is not resumed while its config is invalid. A request to resume the run is therefore ignored until
    the config is valid.
    """
    status = get_status(run)
    is_new = status.get("observedGeneration") != run["metadata"].get("generation")
    return is_new or (
        run_record.is_resume_requested(run) and is_condition_true(run, validation.CONFIG_VALIDATED_CONDITION)
    )


def _find_due_events_of_idle_run(
    run: Resource, snapshot: RunSnapshot, runs: Sequence[Resource], now: datetime
) -> list[DueEvent]:
    detection = validation.find_upgrade(run, snapshot, run_record.get_finished_version(run))
    if _are_conditions_outdated(run, detection.conditions):
        return [DueEvent.RUN_VALIDATED]
    names = claims.list_pools_to_claim(run, snapshot.list_pool_names(run))
    if claims.find_leftover_pools(run, names, snapshot.pools.values()):
        return [DueEvent.RUN_RESTORE_PENDING]
    if detection.version:
        rivals = claims.find_rival_claims(run, names, snapshot.pools, runs) or claims.list_other_active_runs(run, runs)
        return [] if rivals else [DueEvent.UPGRADE_DETECTED]
    if has_finalizer(run) or claims.select_claimed_pools(run["metadata"]["uid"], snapshot.pools.values()):
        return [DueEvent.RUN_RESTORE_PENDING]
    return [DueEvent.RUN_CHECK_PENDING] if is_full_check_due(run["metadata"]["uid"], now) else []


def find_due_events_of_active_run(
    run: Resource, snapshot: RunSnapshot, now: datetime, timeout_seconds: float
) -> list[DueEvent]:
    """Return the events that an active run waits for: they undo other clients' changes and continue the run.

    A halted run does not continue; only the result of a Job that has ended is still recorded.
    """
    current_stage = run_record.compute_stage(run, wait_checks.build_cleanup_predicate(snapshot))
    drifted = find_drift(run, snapshot)
    if validation.is_halted(run):
        return (
            [*drifted, DueEvent.JOB_DUE]
            if current_stage in (Stage.JOBS, Stage.CLEANUP) and wait_checks.has_job_result(run, snapshot)
            else drifted
        )
    if drifted and current_stage not in WAITING_STAGES:
        return drifted
    is_in_progress = {
        Stage.PAUSED: wait_checks.awaits_control_plane,
        Stage.JOBS: wait_checks.is_job_running,
        Stage.CLEANUP: wait_checks.is_job_running,
        Stage.PREJOBS_DONE: wait_checks.is_node_maintained,
        Stage.RELEASED: wait_checks.is_node_upgrading,
    }.get(current_stage)
    return (
        drifted
        if is_in_progress and is_in_progress(run, snapshot, now, timeout_seconds)
        else [*drifted, DUE_EVENT_OF_STAGE[current_stage]]
    )


def find_drift(run: Resource, snapshot: RunSnapshot) -> list[DueEvent]:
    """Return the events that handle other clients' changes, and a change of the control plane's state."""
    if undone := list(_find_correction_events(run, snapshot)):
        return undone
    has_moved = validation.awaits_control_plane(run) and _are_conditions_outdated(
        run, [_build_readiness_condition(snapshot)]
    )
    return [DueEvent.POOLS_PAUSED] if has_moved and not validation.is_halted(run) else []


def is_flapping(run: Resource, snapshot: RunSnapshot, due_event: DueEvent, now: datetime) -> bool:
    """Return whether the event would only correct pools that were already corrected seconds ago.

    Only the tick repeats such corrections.
    """
    record = get_record(run)
    return due_event in CORRECTION_CHECKS and all(
        is_met(record, claims.exclude_pools_in_cooldown(record, state, snapshot.pools, now))
        for state, is_met in CORRECTION_CHECKS[due_event]
    )


def _find_correction_events(run: Resource, snapshot: RunSnapshot) -> Iterator[DueEvent]:
    """Yield the events whose functions undo other clients' changes to the finalizer, pools, labels and selectors.

    All of these events are emitted on the same tick, because a correction that the API server keeps rejecting must not
    delay the other corrections. The exception is the pools' selectors, which are corrected only after the nodes'
    labels. Otherwise the canary pool would select a node without labels, which would be upgraded immediately.
    """
    record = get_record(run)
    if not get_current_node(record):
        return  # all nodes are done, and the pools are being restored
    if not has_finalizer(run):
        yield DueEvent.UPGRADE_DETECTED
    is_intact = claims.are_pools_paused(record, snapshot.pools) and claims.are_pools_claimed(record, snapshot.pools)
    if record.get("pausedAt") and not is_intact:
        yield DueEvent.POOLS_CLAIMED
    if record.get("labelledAt") and not _are_nodes_gated(record, snapshot):
        yield DueEvent.POOLS_PAUSED
    elif record.get("editedAt") and not claims.are_pools_edited(record, snapshot.pools):
        yield DueEvent.NODES_LABELLED


def _are_nodes_gated(record: run_record.RunRecord, snapshot: RunSnapshot) -> bool:
    """Return whether all unreleased nodes of the run carry the run's labels.

    A node that no longer exists, or was replaced by a node with the same name, does not belong to the run.
    """
    rules = run_record.list_recorded_rules(record)
    nodes = ((name, snapshot.nodes.get(name)) for name in run_record.list_unreleased_nodes(record))
    return all(
        node_labels.is_gated(node, record["id"], rules)
        for name, node in nodes
        if run_record.is_recorded_node(node, record, name)
    )


def _build_readiness_condition(snapshot: RunSnapshot) -> Condition:
    return validation.build_control_plane_condition(versions.parse_desired_version(snapshot.cluster_version))


def is_active_undeleted(run: Resource) -> bool:
    """Return whether the run is active and not being deleted.

    The event that such a run waits for depends on its Jobs and on its current node's NodeMaintenance.
    """
    return is_active(run) and not is_deleting(run)
