"""Determines the events that rules, targets and runs wait for, so that `resync-runs` can emit lost events again.

`STAGES` maps each stage of an active run to the event that continues the run; docs/mutex.md explains the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from kube.mutex import claims, jobs, nodes, run_record, validation, versions
from kube.mutex.jobs import JobOutcome
from kube.mutex.objects import (
    MAX_MESSAGE_CHARACTERS,
    Condition,
    Reference,
    Resource,
    get_condition,
    get_status,
    has_finalizer,
    is_condition_true,
    is_deleting,
)
from kube.mutex.run_record import RunRecord, Stage, get_current_node, get_record, is_active, is_recorded_node
from kube.mutex.validation import RunSnapshot
from kube.paths import Object

TICK_SECONDS, TICKS_PER_FULL_CHECK = 15, 40
"""Seconds between two ticks of the PingSource, and number of ticks in ten minutes.

Every ten minutes, `resync-runs` checks each object regardless of its status (MUT-30).
"""


class DueEvent(Enum):
    """An event that an object may be waiting for; the value is the event type without its prefix."""

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


@dataclass(frozen=True)
class ObservedRun:
    """A MutexRunConfig, and the objects that it depends on, as they were last read.

    `timeout_seconds` is the maximum time that the upgrade of a released node may take.
    """

    run: Resource
    snapshot: RunSnapshot
    now: datetime
    timeout_seconds: float

    @property
    def record(self) -> RunRecord:
        """Return the run's record."""
        return get_record(self.run)

    @property
    def node_name(self) -> str:
        """Return the name of the node that the active run works on, "" if all nodes are done."""
        return get_current_node(self.record)

    @property
    def node(self) -> Object | None:
        """Return the node with the current node's name, which may be a replacement of the recorded node."""
        return self.snapshot.nodes.get(self.node_name)

    @property
    def job_outcome(self) -> JobOutcome | None:
        """Return the outcome of the Job that the current node waits for, None if no such Job has been created."""
        due = run_record.find_due_job(self.record, self.node_name, self._has_cleanup)
        entry = run_record.get_job_entry(self.record, self.node_name, due) if due else {}
        if not entry.get("name"):
            return None
        return jobs.get_job_outcome(self.snapshot.jobs.get(Reference(entry["namespace"], entry["name"])))

    def _has_cleanup(self, rule: Reference) -> bool:
        return rule not in self.snapshot.rules or jobs.has_cleanup(self.snapshot.rules[rule])


def is_job_running(observed: ObservedRun) -> bool:
    """Return whether the current node's Job is running, so that an event will report the end of the Job.

    The Job may be running even if the node no longer exists.
    """
    return observed.job_outcome is JobOutcome.RUNNING


def awaits_control_plane(observed: ObservedRun) -> bool:
    """Return whether the run waits for the control plane's upgrade.

    `_find_drift` has already checked that the run's condition describes the current state of the control plane.
    """
    return validation.awaits_control_plane(observed.run)


def is_node_maintained(observed: ObservedRun) -> bool:
    """Return whether a maintenance that this run did not request delays the release of the current node."""
    node, maintainer = observed.node, observed.snapshot.maintainers.get(observed.node_name)
    return node is not None and bool(nodes.find_release_blocker(node, maintainer, observed.record["id"]))


def is_node_upgrading(observed: ObservedRun) -> bool:
    """Return whether the released node is upgrading, so that an event will report its next change.

    The node must still exist, have no rule labels, have a version older than the desired one, and be within its time
    limit. The node is held while no version is desired or while the control plane is upgrading. The run's record and
    condition must then already report that the node is held.
    """
    node, name = observed.node, observed.node_name
    if not is_recorded_node(node, observed.record, name) or not nodes.is_released(node):
        return False
    desired, node_record = (
        versions.parse_desired_version(observed.snapshot.cluster_version),
        observed.record["nodes"][name],
    )
    if desired.version and versions.get_version(node) == desired.version:
        return False
    held_at, released_at = node_record.get("heldAt"), node_record.get("releasedAt")
    if desired.blocker:
        reason = get_condition(observed.run, validation.NODE_UPGRADE_CONDITION).get("reason")
        return bool(held_at) and reason == validation.HELD_REASON
    return not held_at and run_record.compute_seconds_since(released_at, observed.now) < observed.timeout_seconds


class StageRow(NamedTuple):
    """The event that continues a run from one of its stages.

    Attributes:
        due_event: Event that continues the run, and that `resync-runs` emits if it was lost.
        is_in_progress: Function that returns whether the run waits for a change that another event will report. In that
            case, no event was lost. None if the stage waits only for a function.
        precedes_repairs: Whether the event is emitted even before other clients' changes are undone. This applies to
            stages that wait for the end of a Job or an upgrade, because the API server may reject the repairs forever.
    """

    due_event: DueEvent
    is_in_progress: Callable[[ObservedRun], bool] | None = None
    precedes_repairs: bool = False


STAGES: Mapping[Stage, StageRow] = {
    Stage.CLAIMED: StageRow(DueEvent.POOLS_CLAIMED),
    Stage.PAUSED: StageRow(DueEvent.POOLS_PAUSED, awaits_control_plane),
    Stage.LABELLED: StageRow(DueEvent.NODES_LABELLED),
    Stage.JOBS: StageRow(DueEvent.JOB_DUE, is_job_running, precedes_repairs=True),
    Stage.PREJOBS_DONE: StageRow(DueEvent.NODE_PREJOBS_DONE, is_node_maintained),
    Stage.RELEASED: StageRow(DueEvent.NODE_RELEASED, is_node_upgrading, precedes_repairs=True),
    Stage.CLEANUP: StageRow(DueEvent.JOB_DUE, is_job_running, precedes_repairs=True),
    Stage.NODES_DONE: StageRow(DueEvent.RUN_NODES_DONE),
}
"""How to continue an active run that is not halted, by its stage."""
CORRECTION_CHECKS = {
    DueEvent.POOLS_CLAIMED: (("paused", claims.are_pools_paused), ("claimed", claims.are_pools_claimed)),
    DueEvent.NODES_LABELLED: (("edited", claims.are_pools_edited),),
}
"""Corrections of pools by event: the name of each correction in the record, and the check whether it is needed."""


def is_full_check_due(uid: str, now: datetime) -> bool:
    """Return whether `resync-runs` must now check the object, as every ten minutes, regardless of its status."""
    return (
        int(now.timestamp() // TICK_SECONDS) % TICKS_PER_FULL_CHECK
        == int(uid.replace("-", "")[:8] or "0", 16) % TICKS_PER_FULL_CHECK
    )


def find_due_events_of_rule(rule: Resource, now: datetime) -> list[DueEvent]:
    """Return the event of a MutexRule whose current generation is not validated yet.

    An invalid rule is also validated every ten minutes, because its namespace may have been created meanwhile.
    """
    condition = get_condition(rule, validation.VALID_CONFIG_CONDITION)
    if is_deleting(rule):
        return []
    is_check_due = condition.get("status") != "True" and is_full_check_due(rule["metadata"]["uid"], now)
    return (
        [] if validation.is_current_generation_validated(rule) and not is_check_due else [DueEvent.RULE_CHECK_PENDING]
    )


def find_due_events_of_target(target: Resource, snapshot: RunSnapshot) -> list[DueEvent]:
    """Return the event of a MutexTarget whose nodes or conditions differ from its status (MUT-22)."""
    if is_deleting(target):
        return []
    target_state = validation.compute_target_state(target, snapshot.pools, snapshot.nodes.values())
    is_reported = get_status(target).get("nodes") == target_state.node_names and not _are_conditions_outdated(
        target, target_state.conditions
    )
    return [] if is_reported else [DueEvent.TARGET_CHECK_PENDING]


def _are_conditions_outdated(obj: Resource, conditions: list[Condition]) -> bool:
    """Return whether a reported condition differs from the desired one, or describes an older generation."""
    reported_conditions = [get_condition(obj, condition.condition_type) for condition in conditions]
    return any(
        (reported.get("status"), reported.get("message"))
        != (str(condition.holds), condition.message[:MAX_MESSAGE_CHARACTERS])
        or reported.get("observedGeneration") != obj["metadata"].get("generation")
        for reported, condition in zip(reported_conditions, conditions, strict=True)
    )


def find_due_events_of_run(observed: ObservedRun, runs: Sequence[Resource]) -> list[DueEvent]:
    """Return the events that a MutexRunConfig waits for and that no function will emit.

    Only an active run can wait for several events. Other clients' changes are undone even if the MutexRunConfig must
    still be validated, because the validation may fail forever.
    """
    run, snapshot = observed.run, observed.snapshot
    if is_deleting(run):
        return [DueEvent.RUN_RESTORE_PENDING] if has_finalizer(run) else []
    if has_unprocessed_change(run) or _are_conditions_outdated(run, [validation.build_config_condition(run, snapshot)]):
        return [DueEvent.RUN_CHECK_PENDING, *(_find_drift(observed) if is_active(run) else [])]
    if is_active(run):
        return _find_due_events_of_active_run(observed)
    if not is_condition_true(run, validation.CONFIG_VALIDATED_CONDITION):
        claimed_pools = claims.select_claimed_pools(run["metadata"]["uid"], snapshot.pools.values())
        return [DueEvent.RUN_RESTORE_PENDING] if claimed_pools else []
    return _find_due_events_of_idle_run(observed, runs)


def find_due_events_on_hint(observed: ObservedRun, runs: Sequence[Resource]) -> list[DueEvent]:
    """Return the events that a MutexRunConfig waits for after a pool, the ClusterVersion, a rule or a target changed.

    The result excludes the events of the run's own progress, which functions emit, or `resync-runs` if they are lost.
    It also excludes the correction of a change that another client repeated within seconds, and the restoration for a
    MutexRunConfig that is being deleted.
    """
    due_events = find_due_events_of_run(observed, runs)
    if run_record.is_active_undeleted(observed.run):
        pending = due_events if DueEvent.RUN_CHECK_PENDING in due_events else _find_drift(observed)
        return [due for due in pending if not _is_flapping(observed, due)]
    is_being_restored = due_events == [DueEvent.RUN_RESTORE_PENDING] and has_finalizer(observed.run)
    return [] if is_being_restored else due_events


def has_unprocessed_change(run: Resource) -> bool:
    """Return whether a user has made a change that no function has processed yet.

    A halted run is not resumed while its MutexRunConfig is invalid. Until it is valid, a request to resume the run is
    ignored.
    """
    status = get_status(run)
    is_new = status.get("observedGeneration") != run["metadata"].get("generation")
    return is_new or (
        run_record.is_resume_requested(run) and is_condition_true(run, validation.CONFIG_VALIDATED_CONDITION)
    )


def _find_due_events_of_idle_run(observed: ObservedRun, runs: Sequence[Resource]) -> list[DueEvent]:
    run, snapshot = observed.run, observed.snapshot
    detection = validation.find_upgrade(run, snapshot, run_record.get_finished_version(run))
    if _are_conditions_outdated(run, detection.conditions):
        return [DueEvent.RUN_VALIDATED]
    due_event = find_due_event_of_validated_run(run, snapshot, detection.version)
    if due_event is DueEvent.UPGRADE_DETECTED:
        names = claims.list_pools_to_claim(run, snapshot.list_pool_names(run))
        rivals = claims.find_rival_claims(run, names, snapshot.pools, runs) or claims.list_other_active_runs(run, runs)
        return [] if rivals else [due_event]
    if due_event is None and is_full_check_due(run["metadata"]["uid"], observed.now):
        return [DueEvent.RUN_CHECK_PENDING]
    return [due_event] if due_event else []


def find_due_event_of_validated_run(run: Resource, snapshot: RunSnapshot, available_version: str) -> DueEvent | None:
    """Return the event that a valid MutexRunConfig without an active run waits for, None if it waits for an upgrade.

    Pools that an earlier run did not restore must be restored first, even if an upgrade is available.
    """
    names, all_pools = claims.list_pools_to_claim(run, snapshot.list_pool_names(run)), snapshot.pools.values()
    if claims.find_leftover_pools(run, names, all_pools):
        return DueEvent.RUN_RESTORE_PENDING
    if available_version:
        return DueEvent.UPGRADE_DETECTED
    has_changes = has_finalizer(run) or claims.select_claimed_pools(run["metadata"]["uid"], all_pools)
    return DueEvent.RUN_RESTORE_PENDING if has_changes else None


def _find_due_events_of_active_run(observed: ObservedRun) -> list[DueEvent]:
    """Return the events that an active run waits for: they undo other clients' changes and continue the run."""
    stage, drift_events = run_record.compute_stage(observed.run), _find_drift(observed)
    if validation.is_halted(observed.run):
        is_result_due = stage in (Stage.JOBS, Stage.CLEANUP) and _has_job_result(observed)
        return [*drift_events, DueEvent.JOB_DUE] if is_result_due else drift_events
    row = STAGES[stage]
    if drift_events and not row.precedes_repairs:
        return drift_events
    if row.is_in_progress and row.is_in_progress(observed):
        return drift_events
    return [*drift_events, row.due_event]


def _has_job_result(observed: ObservedRun) -> bool:
    """Return whether the current node's Job has ended or was deleted, and the node still exists.

    A halted run does not continue, but the Job's result must be recorded before the Job's TTL removes it.
    """
    has_ended = observed.job_outcome not in (None, JobOutcome.RUNNING)
    return has_ended and is_recorded_node(observed.node, observed.record, observed.node_name)


def _find_drift(observed: ObservedRun) -> list[DueEvent]:
    """Return the events that undo other clients' changes or handle a changed state of the control plane."""
    if corrections := list(_find_correction_events(observed)):
        return corrections
    if validation.is_halted(observed.run) or not validation.awaits_control_plane(observed.run):
        return []
    desired = versions.parse_desired_version(observed.snapshot.cluster_version)
    has_moved = _are_conditions_outdated(observed.run, [validation.build_control_plane_condition(desired)])
    return [DueEvent.POOLS_PAUSED] if has_moved else []


def _is_flapping(observed: ObservedRun, due_event: DueEvent) -> bool:
    """Return whether the event would only correct pools that were already corrected seconds ago.

    Such a correction is left to `resync-runs`.
    """
    record, pools = observed.record, observed.snapshot.pools
    return due_event in CORRECTION_CHECKS and all(
        is_met(record, claims.exclude_pools_in_cooldown(record, state, pools, observed.now))
        for state, is_met in CORRECTION_CHECKS[due_event]
    )


def _find_correction_events(observed: ObservedRun) -> Iterator[DueEvent]:
    """Yield the events whose functions undo other clients' changes of the finalizer, pools, labels and selectors.

    `resync-runs` emits all of them at the same time, because a correction that the API server keeps rejecting must not
    delay the others. The exception is the pools' selectors, which are corrected after the nodes' labels. Otherwise, the
    canary pool would select a node without labels, which would be upgraded immediately.
    """
    record, pools = observed.record, observed.snapshot.pools
    if not observed.node_name:
        return  # All nodes are done, and the pools are being restored.
    if not has_finalizer(observed.run):
        yield DueEvent.UPGRADE_DETECTED
    if record.get("pausedAt") and not (
        claims.are_pools_paused(record, pools) and claims.are_pools_claimed(record, pools)
    ):
        yield DueEvent.POOLS_CLAIMED
    if record.get("labelledAt") and not _do_all_nodes_have_run_labels(observed):
        yield DueEvent.POOLS_PAUSED
    elif record.get("editedAt") and not claims.are_pools_edited(record, pools):
        yield DueEvent.NODES_LABELLED


def _do_all_nodes_have_run_labels(observed: ObservedRun) -> bool:
    """Return whether all unreleased nodes of the run have the run's labels.

    A recorded node that was deleted, or replaced by a node with the same name, no longer belongs to the run.
    """
    record, rules = observed.record, run_record.list_recorded_rules(observed.record)
    unreleased = {name: observed.snapshot.nodes.get(name) for name in run_record.list_unreleased_nodes(record)}
    return all(
        nodes.has_run_labels(node, record["id"], rules)
        for name, node in unreleased.items()
        if is_recorded_node(node, record, name)
    )
