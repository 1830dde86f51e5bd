"""Computes the status of a NodeMaintenance: phase, progress, pending and blocked pods, conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kube import pods as podrules
from kube.maintenance.blocked_pods import still_blocked
from kube.maintenance.objects import (
    FAILED,
    MOST_LEASE_ERRORS,
    RUNNING,
    SUCCEEDED,
    Maintenance,
    blocked_pods,
    condition,
    has_begun,
    has_given_up,
    is_deleting,
    last_error,
    lease_errors,
    snapshot,
    status_of,
)
from kube.maintenance.node_snapshot import Shown
from kube.paths import Object
from kube.pods import Pod
from kube.times import timestamp
from kube.text_limits import counted, fitting, shortened

PENDING_BYTES, BLOCKED_BYTES = 400_000, 600_000
"""Size limits of the lists in a status; etcd stores no object over 1.5 MiB.

The lists are complete for 600 pods with the longest possible names. The status reports how many entries a longer list
omits.
"""
LONGEST_ERROR = 8192
"""Maximum length of `lastError`, in characters."""
KEPT = "the node is not given back: "
"""Prefix of `lastError` when a deleted maintenance could not restore its node."""


@dataclass(frozen=True)
class Findings:
    """Input for the status that comes from an event and cannot be read from the cluster.

    Attributes:
        error: Latest error; "" after a step without errors, which clears `lastError` (NMO-13).
        blocked: Pods that may not be evicted now, as in `pods.evicted`; None if the event does not list them.
        drained: A fresh list showed no pods left to evict.
        restoring: The error occurred while restoring the node; only such errors matter while the object is deleted.
        renewing: The error occurred while renewing the node's lease. It also matters on a drained node, because others
            may take the node once the lease expires.
        beginning: The error occurred before the maintenance began; it is outdated once the maintenance has begun.
        waits: The error is not a failure: the maintenance begins once another tool releases the node's lease.
        lease_errors: Consecutive failed lease renewals; None if the event does not contain the number.
    """

    error: str = ""
    blocked: list[Object] | None = None
    drained: bool = False
    restoring: bool = False
    renewing: bool = False
    beginning: bool = False
    waits: bool = False
    lease_errors: int | None = None


def progress(eviction_pods: int, pending: int, before: int = 0) -> int:
    """Return the progress in percent, 0 to 100, never less than `before` (NMO-10).

    The formula is `(evictionPods - pending) * 100 // evictionPods`.
    """
    if eviction_pods <= 0:
        return 100
    return max(before, min(100, max(0, (eviction_pods - pending) * 100 // eviction_pods)))


def status_patch(maintenance: Maintenance, shown: Shown, findings: Iterable[Findings], now: datetime) -> Object | None:
    """Build the merge patch for the status subresource, or None if only the time would change (NMO-12).

    `shown` was read after `maintenance`, or by a step that read the same version of it. `findings` are those of one
    event, or of several in their order. The patch fails if another client changed the object meanwhile.
    """
    before = dict(status_of(maintenance))
    after = before
    for found in findings:
        after = {**after, **_status({**maintenance, "status": after}, shown, found, now)}
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    if not changed:
        return None
    changed["lastUpdate"] = timestamp(now)
    return {"metadata": {"resourceVersion": maintenance["metadata"]["resourceVersion"]}, "status": changed}


def _status(maintenance: Maintenance, shown: Shown, findings: Findings, now: datetime) -> Object:
    """Return the status fields that one event sets; the others stay unchanged."""
    if is_deleting(maintenance):
        return {"lastError": f"{KEPT}{_error(findings)}"} if findings.restoring else {}
    if has_given_up(maintenance) or _is_old(maintenance, findings):
        return {}
    if findings.lease_errors and findings.lease_errors > MOST_LEASE_ERRORS:
        return _status_given_up(maintenance, findings.lease_errors, now)
    if has_begun(maintenance):
        return _status_begun(maintenance, shown, findings, now)
    if findings.waits:
        error = _error(findings)
        return {"lastError": error, "conditions": [_condition(maintenance, "Drained", False, "Waiting", error, now)]}
    return _status_failed(maintenance, findings, now) if findings.error else {}


def is_told_kept(maintenance: Maintenance) -> bool:
    """Return whether the status reports that the node could not be restored; an error from the drain does not count."""
    return last_error(maintenance).startswith(KEPT)


def _is_old(maintenance: Maintenance, findings: Findings) -> bool:
    """Return whether the event is older than the known state.

    That is so if it reports that the maintenance could not begin, but the maintenance has begun. It is also so if the
    event's number of failed lease renewals is neither the known number nor the next one.
    """
    if findings.beginning:
        return has_begun(maintenance)
    known = lease_errors(maintenance)
    return bool(findings.lease_errors) and findings.lease_errors not in (known, known + 1)


def _status_given_up(maintenance: Maintenance, count: int, now: datetime) -> Object:
    """Return the status of a maintenance whose lease, and thus node, another tool took over (NMO-27a).

    The maintenance undoes its changes to the node and waits for no pods.
    """
    error = f"maintenance failed: lease could not be extended after {count} attempts"
    remedy = "to go on, delete this object and create it anew once the lease is released"
    conditions = [
        _condition(maintenance, "Cordoned", False, "GivenBack", "another tool holds the lease of the node", now),
        _condition(maintenance, "Drained", False, FAILED, f"{error}; {remedy}", now),
    ]
    lists: Object = {"pendingPods": [], "pendingPodsRefs": [], "pendingCount": 0, "blockedPods": []}
    return {"phase": FAILED, **lists, "errorOnLeaseCount": count, "lastError": error, "conditions": conditions}


def _status_failed(maintenance: Maintenance, findings: Findings, now: datetime) -> Object:
    """Return the status of a maintenance that never began: node unknown, or in another maintenance (NMO-19, NMO-22)."""
    error = _error(findings)
    conditions = [_condition(maintenance, "Drained", False, FAILED, error, now)]
    return {"phase": FAILED, "lastError": error, "conditions": conditions}


def _status_begun(maintenance: Maintenance, shown: Shown, findings: Findings, now: datetime) -> Object:
    before = status_of(maintenance)
    counts = snapshot(maintenance) or {}
    told = blocked_pods(maintenance)
    known = told if findings.blocked is None else findings.blocked
    pending = shown.pending(maintenance, known, now)
    done = not pending and (findings.drained or before.get("phase") == SUCCEEDED)
    phase = SUCCEEDED if done else RUNNING
    percent = 100 if done else progress(counts["evictionPods"], len(pending), _reached(before))
    blocked = still_blocked(known, told, pending, now)
    refused = lease_errors(maintenance) if findings.lease_errors is None else findings.lease_errors
    error = _error(findings) or _lasting_error(before, findings, blocked, refused)
    listed, named = fitting(blocked, BLOCKED_BYTES), fitting(map(podrules.name_of, pending), PENDING_BYTES)
    return {
        "phase": phase,
        "drainProgress": percent,
        "evictionPods": counts["evictionPods"],
        "totalpods": counts["totalpods"],
        "totalPods": counts["totalpods"],  # both spellings (C1)
        "pendingPods": [pod["name"] for pod in named],
        "pendingPodsRefs": named,
        "pendingCount": len(pending),
        "blockedPods": listed,
        "lastError": None if done and shown.is_closed and not (refused or findings.renewing) else error,
        "errorOnLeaseCount": refused or None,
        "conditions": _conditions(maintenance, shown, done, _left(pending, blocked, named, listed), blocked, now),
    }


def _reached(before: Mapping[str, Any]) -> int:
    """Return the progress in the status, limited to 0 to 100, since any client may have written it."""
    percent = before.get("drainProgress")
    return min(100, max(0, percent)) if isinstance(percent, int) else 0


def _error(findings: Findings) -> str:
    return shortened(findings.error, LONGEST_ERROR)


def _left(pending: list[Pod], blocked: list[Object], named: list[Object], listed: list[Object]) -> str:
    """Summarize how many pods remain, how many of them are blocked, and how many the lists omit."""
    words = [f"{counted(len(pending), 'pod')} left", *([f"{len(blocked)} of them blocked"] if blocked else [])]
    lists = ((pending, named, "pendingPods"), (blocked, listed, "blockedPods"))
    words += [f"{len(whole) - len(part)} more than {name} has" for whole, part, name in lists if len(part) < len(whole)]
    return ", ".join(words)


def _lasting_error(before: Mapping[str, Any], findings: Findings, blocked: list[Object], refused: int) -> str | None:
    """Return the previous error if this event did not check its cause, the blocked pods or the lease; else None."""
    lasts = refused or (findings.blocked is None and blocked)
    return before.get("lastError") if lasts else None


def _conditions(
    maintenance: Maintenance, shown: Shown, done: bool, left: str, blocked: list[Object], now: datetime
) -> list[Object]:
    ready = shown.is_closed
    cordoned = ("Cordoned", "the node takes no new pods") if ready else ("NotCordoned", "cordon or taints are missing")
    if done:
        drained = ("Drained", "no pod is left to evict")
    elif blocked:
        drained = ("Blocked", left)
    else:
        drained = ("Draining", left)
    return [
        _condition(maintenance, "Cordoned", ready, *cordoned, now),
        _condition(maintenance, "Drained", done, *drained, now),
    ]


def _condition(maintenance: Maintenance, kind: str, true: bool, reason: str, message: str, now: datetime) -> Object:
    """Build a Kubernetes condition; its transition time changes only with its status."""
    status = "True" if true else "False"
    before = condition(maintenance, kind)
    moved = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": maintenance["metadata"].get("generation", 0),
        "lastTransitionTime": moved or timestamp(now),
    }
