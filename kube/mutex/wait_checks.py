"""Checks whether the action that an active run waits for is in progress, so that no event must be re-emitted."""

from __future__ import annotations

from datetime import datetime

from kube.mutex import jobs, maintainers, node_labels, run_record, validation, versions
from kube.mutex.jobs import JobOutcome
from kube.mutex.objects import Reference, Resource, get_condition
from kube.mutex.run_record import find_due_job, get_current_node, get_job_entry, get_record
from kube.mutex.run_snapshot import RunSnapshot


def build_cleanup_predicate(snapshot: RunSnapshot) -> run_record.HasCleanup:
    """Return a predicate that reports whether a rule has a cleanup Job; it returns True for a deleted rule."""
    return lambda rule: rule not in snapshot.rules or jobs.has_cleanup(snapshot.rules[rule])


def awaits_control_plane(run: Resource, _snapshot: RunSnapshot, _now: datetime, _timeout_seconds: float) -> bool:
    """Return whether the run waits for the control plane.

    The caller has already checked that the run's condition shows the current state of the control plane.
    """
    return validation.awaits_control_plane(run)


def is_job_running(run: Resource, snapshot: RunSnapshot, _now: datetime, _timeout_seconds: float) -> bool:
    """Return whether the Job of the run's current node is running, so that an event will report the Job's end.

    The node itself may no longer exist.
    """
    job = _get_recorded_job(run, snapshot)
    return job is not None and _get_outcome(job, snapshot) is JobOutcome.RUNNING


def has_job_result(run: Resource, snapshot: RunSnapshot) -> bool:
    """Return whether the Job of the run's current node has ended or vanished, and the node still exists.

    The result must be recorded before the Job's TTL removes it.
    """
    record = get_record(run)
    name, job = get_current_node(record), _get_recorded_job(run, snapshot)
    has_ended = job is not None and _get_outcome(job, snapshot) is not JobOutcome.RUNNING
    return has_ended and run_record.is_recorded_node(snapshot.nodes.get(name), record, name)


def _get_recorded_job(run: Resource, snapshot: RunSnapshot) -> Reference | None:
    """Return the Job that the current node waits for, or None if none is recorded."""
    record = get_record(run)
    name = get_current_node(record)
    due = find_due_job(record, name, build_cleanup_predicate(snapshot))
    entry = get_job_entry(record, name, due) if due else {}
    return Reference(entry["namespace"], entry["name"]) if entry.get("name") else None


def _get_outcome(job: Reference, snapshot: RunSnapshot) -> JobOutcome:
    return jobs.get_outcome((snapshot.jobs or {}).get(job))


def is_node_maintained(run: Resource, snapshot: RunSnapshot, _now: datetime, _timeout_seconds: float) -> bool:
    """Return whether a maintenance that this run did not request delays the release of the current node."""
    record = get_record(run)
    name = get_current_node(record)
    node = snapshot.nodes.get(name)
    return node is not None and bool(
        maintainers.find_release_blocker(node, snapshot.maintainers.get(name), record["id"])
    )


def is_node_upgrading(run: Resource, snapshot: RunSnapshot, now: datetime, timeout_seconds: float) -> bool:
    """Return whether the released node is upgrading, so that an event will report its next change.

    The node must still exist, carry no rule labels, have an older version than the desired one, and be within its time
    limit. While no version is desired, or the control plane is still upgrading, the node is held. In that case, the
    record and the condition must already report that the node is held.
    """
    record = get_record(run)
    name = get_current_node(record)
    node = snapshot.nodes.get(name)
    if not run_record.is_recorded_node(node, record, name) or not node_labels.is_released(node):
        return False
    desired = versions.parse_desired_version(snapshot.cluster_version)
    if desired.version and versions.get_version(node) == desired.version:
        return False
    node_record = record["nodes"][name]
    if desired.blocker:
        return (
            bool(node_record.get("heldAt"))
            and get_condition(run, validation.NODE_UPGRADE_CONDITION).get("reason") == validation.HELD_REASON
        )
    return (
        not node_record.get("heldAt")
        and run_record.compute_seconds_since(node_record.get("releasedAt"), now) < timeout_seconds
    )
