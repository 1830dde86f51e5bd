"""Computes the status of a NodeMaintenance: phase, progress, pending and blocked pods, and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kube import pods as podrules
from kube.maintenance import escalation
from kube.maintenance.blocked_pods import build_blocked_pods
from kube.maintenance.node_snapshot import NodeSnapshot
from kube.maintenance.objects import (
    FAILED,
    MAX_LEASE_ERRORS,
    RUNNING,
    SUCCEEDED,
    Maintenance,
    get_blocked_pods,
    get_condition,
    get_last_error,
    get_lease_error_count,
    get_spec,
    get_status,
    has_begun,
    has_lost_lease,
    is_deleting,
    parse_annotated_pod_counts,
)
from kube.paths import Object
from kube.pods import Pod
from kube.text_limits import format_count, take_within_bytes, truncate
from kube.times import format_time, parse_time, parse_time_or_none

MAX_PENDING_BYTES, MAX_BLOCKED_BYTES = 400_000, 600_000
"""Maximum sizes, in bytes, of the pod lists in a status; etcd stores no object larger than 1.5 MiB.

The lists are complete for 600 pods with the longest possible names. For longer lists, the status reports how many pods
are omitted.
"""
MAX_ERROR_CHARACTERS = 8192
"""Maximum length of `status.lastError`, in characters."""
UNRESTORED_PREFIX = "the node is not restored: "
"""Prefix of `lastError` if the node of a deleted maintenance could not be restored."""


@dataclass(frozen=True)
class StatusInput:
    """The part of the input for a status that comes from an event and cannot be read from the cluster.

    Attributes:
        error: Latest error; "" after a step without errors, which clears `lastError` (NMO-13).
        blocked: Pods that may not be evicted now, as in the event `pods.evicted`; None if the event does not list them.
        is_drained: Whether a new pod list contained no pods to evict.
        is_restore_error: Whether the error occurred while the node was being restored. While a maintenance is being
            deleted, only such errors are reported.
        is_lease_renewal_error: Whether the error occurred while the node's Lease was being renewed. It is also reported
            for a drained node, because another tool may take the node once the Lease expires.
        is_begin_error: Whether the error occurred before the maintenance began; it is outdated once it has begun.
        is_waiting: Whether the error is not a failure, because the maintenance begins once another tool releases the
            node's Lease.
        lease_error_count: Number of consecutive failed Lease renewals; None if the event does not contain it.
        due_step: Escalation step that `resync` found to be due, as in the spec; only this step may begin.
    """

    error: str = ""
    blocked: list[Object] | None = None
    is_drained: bool = False
    is_restore_error: bool = False
    is_lease_renewal_error: bool = False
    is_begin_error: bool = False
    is_waiting: bool = False
    lease_error_count: int | None = None
    due_step: Mapping[str, object] | None = None


def compute_progress(eviction_pod_count: int, pending_count: int, previous_percent: int = 0) -> int:
    """Return the progress in percent, from 0 to 100, never less than `previous_percent` (NMO-10).

    The formula is `(evictionPods - pending) * 100 // evictionPods`.
    """
    if eviction_pod_count <= 0:
        return 100
    return max(previous_percent, min(100, max(0, (eviction_pod_count - pending_count) * 100 // eviction_pod_count)))


def build_status_patch(
    maintenance: Maintenance, snapshot: NodeSnapshot, status_input: StatusInput, now: datetime
) -> Object | None:
    """Build the merge patch for the status subresource; None if only the timestamp would change (NMO-12).

    `snapshot` was read after `maintenance`, or by a step that read the same version of it. The patch fails if another
    client has changed the object since it was read.
    """
    before, after = get_status(maintenance), _build_status(maintenance, snapshot, status_input, now)
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    if not changed:
        return None
    changed["lastUpdate"] = format_time(now)
    return {"metadata": {"resourceVersion": maintenance["metadata"]["resourceVersion"]}, "status": changed}


def _build_status(maintenance: Maintenance, snapshot: NodeSnapshot, status_input: StatusInput, now: datetime) -> Object:
    """Return the status fields that one event changes."""
    if is_deleting(maintenance):
        return (
            {"lastError": f"{UNRESTORED_PREFIX}{_truncate_error(status_input)}"}
            if status_input.is_restore_error
            else {}
        )
    if has_lost_lease(maintenance) or _is_input_outdated(maintenance, status_input):
        return {}
    if status_input.lease_error_count and status_input.lease_error_count > MAX_LEASE_ERRORS:
        return _build_lease_lost_status(maintenance, status_input.lease_error_count, now)
    if has_begun(maintenance):
        return _build_begun_status(maintenance, snapshot, status_input, now)
    if status_input.is_waiting:
        error = _truncate_error(status_input)
        return {
            "lastError": error,
            "conditions": [_build_condition(maintenance, "Drained", False, "Waiting", error, now)],
        }
    return _build_failed_status(maintenance, status_input, now) if status_input.error else {}


def is_restore_failure_reported(maintenance: Maintenance) -> bool:
    """Return whether the status reports that restoring the node failed; errors from the drain do not count."""
    return get_last_error(maintenance).startswith(UNRESTORED_PREFIX)


def _is_input_outdated(maintenance: Maintenance, status_input: StatusInput) -> bool:
    """Return whether the event is older than the maintenance's status.

    An event is outdated if it reports that the maintenance could not begin, but the maintenance has begun. It is also
    outdated if its number of failed Lease renewals is neither the number in the status nor one more.
    """
    if status_input.is_begin_error:
        return has_begun(maintenance)
    known_count = get_lease_error_count(maintenance)
    return bool(status_input.lease_error_count) and status_input.lease_error_count not in (known_count, known_count + 1)


def _build_lease_lost_status(maintenance: Maintenance, lease_error_count: int, now: datetime) -> Object:
    """Build the status of a maintenance that has lost its Lease, and thus its node, to another tool (NMO-27a).

    The maintenance restores the node, and has no pending pods.
    """
    error = f"maintenance failed: lease could not be extended after {lease_error_count} attempts"
    remedy = "to continue, delete this object and create it again after the other tool has released the lease"
    conditions = [
        _build_condition(maintenance, "Cordoned", False, "GivenBack", "another tool holds the node's lease", now),
        _build_condition(maintenance, "Drained", False, FAILED, f"{error}; {remedy}", now),
    ]
    lists: Object = {"pendingPods": [], "pendingPodsRefs": [], "pendingCount": 0, "blockedPods": []}
    return {
        "phase": FAILED,
        **lists,
        "errorOnLeaseCount": lease_error_count,
        "lastError": error,
        "conditions": conditions,
    }


def _build_failed_status(maintenance: Maintenance, status_input: StatusInput, now: datetime) -> Object:
    """Build the status of a maintenance that could not begin: its node is unknown or unavailable (NMO-19, NMO-22)."""
    error = _truncate_error(status_input)
    conditions = [_build_condition(maintenance, "Drained", False, FAILED, error, now)]
    return {"phase": FAILED, "lastError": error, "conditions": conditions}


def _build_begun_status(
    maintenance: Maintenance, snapshot: NodeSnapshot, status_input: StatusInput, now: datetime
) -> Object:
    """Build the status of a maintenance that drains its node or has drained it."""
    previous, reported = get_status(maintenance), get_blocked_pods(maintenance)
    current_blocked = reported if status_input.blocked is None else status_input.blocked
    pending = snapshot.list_pending(maintenance, current_blocked, now)
    blocked = build_blocked_pods(current_blocked, reported, pending, now, is_node_unreachable=snapshot.is_unreachable)
    is_drained = not pending and (status_input.is_drained or previous.get("phase") == SUCCEEDED)
    lists = _build_pod_lists(pending, blocked)
    errors = _build_error_fields(maintenance, snapshot, status_input, blocked, is_drained=is_drained)
    due_step = status_input.due_step if pending and snapshot.is_cordoned_and_tainted else None
    schedule = _build_schedule_fields(maintenance, due_step, now, is_drained=is_drained)
    facts = {**lists, **errors, **schedule}
    return {
        "phase": SUCCEEDED if is_drained else RUNNING,
        **_build_progress_fields(maintenance, len(pending), is_drained=is_drained),
        **facts,
        "conditions": [
            _build_cordoned_condition(maintenance, snapshot, now),
            _build_drained_condition(maintenance, facts, pending, blocked, now, is_drained=is_drained),
        ],
    }


def _build_schedule_fields(
    maintenance: Maintenance, reported_step: Mapping[str, object] | None, now: datetime, *, is_drained: bool
) -> Object:
    """Return the status fields for the drain's start time and current escalation step, which ends with the drain.

    `reported_step` is the step that `resync` found to be due. It begins only if it is still the due step.
    """
    start = escalation.determine_drain_start_time(maintenance, now, is_drained=is_drained)
    step = get_status(maintenance).get("escalation") if escalation.find_current_escalation_step(maintenance) else None
    due_step = escalation.find_due_escalation_step(maintenance, now)
    if due_step and due_step.as_data() == reported_step:
        step = due_step.build_status_fields(now)
    return {"startTime": format_time(start) if start else None, "escalation": None if is_drained else step}


def _build_progress_fields(maintenance: Maintenance, pending_count: int, *, is_drained: bool) -> Object:
    """Return the status fields for the pod counts from the start of the maintenance, and for the progress."""
    counts = parse_annotated_pod_counts(maintenance) or {}
    previous_percent = _parse_progress(get_status(maintenance))
    percent = 100 if is_drained else compute_progress(counts["evictionPods"], pending_count, previous_percent)
    return {
        "drainProgress": percent,
        "evictionPods": counts["evictionPods"],
        "totalpods": counts["totalpods"],
        "totalPods": counts["totalpods"],  # both spellings (C1)
    }


def _build_pod_lists(pending: list[Pod], blocked: list[Object]) -> Object:
    """Return the status fields that list the pending and the blocked pods, as many as fit into a status."""
    listed = take_within_bytes(map(podrules.build_name_reference, pending), MAX_PENDING_BYTES)
    return {
        "pendingPods": [pod["name"] for pod in listed],
        "pendingPodsRefs": listed,
        "pendingCount": len(pending),
        "blockedPods": take_within_bytes(blocked, MAX_BLOCKED_BYTES),
    }


def _build_error_fields(
    maintenance: Maintenance,
    snapshot: NodeSnapshot,
    status_input: StatusInput,
    blocked: list[Object],
    *,
    is_drained: bool,
) -> Object:
    """Return the status fields for the error and for the number of failed Lease renewals.

    The previous error persists if the event did not check its cause, which is a blocked pod or the Lease. On a drained
    node that is still cordoned and tainted, only an error about the Lease is reported. The error of an event that lists
    blocked pods is about these pods, so it is dropped if none of them is still blocked. Without any other error, an
    invalid deadline or escalation is reported.
    """
    lease_error_count = status_input.lease_error_count
    if lease_error_count is None:
        lease_error_count = get_lease_error_count(maintenance)
    persists = lease_error_count or (status_input.blocked is None and blocked)
    previous_error = get_status(maintenance).get("lastError") if persists else None
    is_lease_error = bool(lease_error_count) or status_input.is_lease_renewal_error
    error = "" if status_input.blocked and not blocked else _truncate_error(status_input)
    schedule_error = escalation.parse_drain_schedule(maintenance).error or None
    is_resolved = is_drained and snapshot.is_cordoned_and_tainted and not is_lease_error
    return {
        "lastError": None if is_resolved else error or previous_error or schedule_error,
        "errorOnLeaseCount": lease_error_count or None,
    }


def _parse_progress(previous_status: Mapping[str, Any]) -> int:
    """Return the progress in the status, limited to 0 to 100, because any client may have written it."""
    percent = previous_status.get("drainProgress")
    return min(100, max(0, percent)) if isinstance(percent, int) else 0


def _truncate_error(status_input: StatusInput) -> str:
    return truncate(status_input.error, MAX_ERROR_CHARACTERS)


def _build_cordoned_condition(maintenance: Maintenance, snapshot: NodeSnapshot, now: datetime) -> Object:
    if snapshot.is_cordoned_and_tainted:
        return _build_condition(maintenance, "Cordoned", True, "Cordoned", "the node takes no new pods", now)
    return _build_condition(maintenance, "Cordoned", False, "NotCordoned", "cordon or taints are missing", now)


def _build_drained_condition(
    maintenance: Maintenance,
    status: Object,
    pending: list[Pod],
    blocked: list[Object],
    now: datetime,
    *,
    is_drained: bool,
) -> Object:
    """Build the condition Drained from the other fields of `status`.

    An error without blocked pods means that a step failed. An error about the Lease does not, because the drain
    continues.
    """
    if is_drained:
        return _build_condition(maintenance, "Drained", True, "Drained", "no pod is left to evict", now)
    has_failed_step = status["lastError"] and not status["errorOnLeaseCount"]
    reason = "Blocked" if blocked else "StepFailed" if has_failed_step else "Draining"
    message = _format_remaining_pods(status, pending, blocked)
    if escalation.has_passed_drain_deadline(maintenance, parse_time(status["startTime"]), now):
        reason = escalation.DEADLINE_EXCEEDED
        message += f"; not drained within the deadline of {get_spec(maintenance)['drain']['deadline']}"
    if step := status["escalation"]:
        message += f"; step {step['action']} of the escalation since {step['time']}"
    return _build_condition(maintenance, "Drained", False, reason, message, now)


def _format_remaining_pods(lists: Object, pending: list[Pod], blocked: list[Object]) -> str:
    """Summarize how many pods remain, are blocked, or are within their grace period, and how many the lists omit.

    The API server sets a pod's deletionTimestamp to the end of its grace period.
    """
    pending_count, blocked_count = lists["pendingCount"], len(blocked)
    stuck = {f"{item['namespace']}/{item['name']}" for item in blocked}
    parts = [f"{format_count(pending_count, 'pod')} left"]
    if blocked_count:
        parts.append(f"{blocked_count} of them blocked")
    in_time = [pod for pod in pending if podrules.is_terminating(pod) and podrules.format_key(pod) not in stuck]
    if ends := [end for pod in in_time if (end := parse_time_or_none(pod["metadata"]["deletionTimestamp"]))]:
        parts.append(f"{len(ends)} in the grace period until {max(ends):%H:%M:%S} UTC")
    for name, count in (("pendingPods", pending_count), ("blockedPods", blocked_count)):
        if omitted_count := count - len(lists[name]):
            parts.append(f"{omitted_count} more than {name} lists")
    return ", ".join(parts)


def _build_condition(
    maintenance: Maintenance, condition_type: str, is_true: bool, reason: str, message: str, now: datetime
) -> Object:
    """Build a status condition; its transition time changes only if its status changes."""
    status = "True" if is_true else "False"
    before = get_condition(maintenance, condition_type)
    transition_time = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": condition_type,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": maintenance["metadata"].get("generation", 0),
        "lastTransitionTime": transition_time or format_time(now),
    }
