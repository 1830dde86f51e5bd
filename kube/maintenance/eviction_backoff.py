"""Backoff for pods whose eviction achieves nothing: a controller recreates them here, or it is refused (rule 9).

The backoff grows with the time that this has lasted, up to one minute. It is computed from timestamps in the objects,
so that every event handler, every process and the tick apply the same backoff.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from kube.budgets import LAUNCHER_REASONS, Blocked, identity
from kube.maintenance.objects import (
    Maintenance,
    blocked_pods,
    condition,
    group,
    is_changed,
    is_cordoned,
)
from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE
from kube.pods import Pod, controller, is_terminating, tolerates, tolerates_everything
from kube.times import moment, moment_or_none, timestamp

SHORTEST, LONGEST = timedelta(seconds=10), timedelta(seconds=60)
"""Bounds of the backoff.

A pod that a controller recreates at once is evicted at most four times in the first minute, then once a minute.
"""
LANDING = timedelta(seconds=2)
"""Time after the cordon during which the scheduler may still bind pods that it was already scheduling."""
BUDGET_REASONS = ("DisruptionBudget", "MultipleBudgets", *LAUNCHER_REASONS)
"""Reasons without a backoff: an event reports when the budget allows evictions; none is sent before."""
UNDECIDED = ("NoAnswer", "Changing", "Busy", "NoTime")
"""Reasons of evictions that failed without a refusal; they are retried at once if the pass made progress elsewhere."""


def pause(elapsed: timedelta) -> timedelta:
    """Return a backoff as long as the elapsed time, within bounds, so that each one is about twice the previous one."""
    return min(max(elapsed, SHORTEST), LONGEST)


def is_resting(announced: Mapping[str, Any] | None, now: datetime) -> bool:
    """Return whether a repeated correction is in backoff, so that it is left to the next tick.

    `announced` is the Event that counts the repetitions, None if there is none.
    """
    if announced is None:
        return False
    first, last = (moment_or_none(announced.get(name)) for name in ("firstTimestamp", "lastTimestamp"))
    return bool(first and last and abs(now - last) < pause(last - first))  # abs(): a clock may be set back


def parted(pods: Iterable[Pod], maintenance: Maintenance, now: datetime) -> tuple[list[Pod], list[Blocked]]:
    """Split the pods into those to evict now and those in backoff; the latter come with their reason.

    A refusal that was recorded for an older spec causes no backoff (DRN-1a).
    """
    due: list[Pod] = []
    resting: list[Blocked] = []
    told = [] if is_changed(maintenance) else blocked_pods(maintenance)
    known = {(item["namespace"], item["name"]): item for item in told}
    for pod in pods:
        metadata = pod["metadata"]
        refused = known.get((metadata["namespace"], metadata["name"]))
        reasons = [] if is_terminating(pod) else [_refused(pod, refused, now), _returned(pod, maintenance, now)]
        blocked = [reason for reason in reasons if reason and now < moment(reason.retry_after)]
        if blocked:
            resting.append(blocked[-1])
        else:
            due.append(pod)
    return due, resting


def dated(blocked: Iterable[Blocked], maintenance: Maintenance, now: datetime) -> list[Blocked]:
    """Return the blocked pods, with a `retry_after` time unless they wait for a budget or already have one."""
    known = _since(maintenance)
    return [_dated(item, known.get(_key(item)), now) for item in blocked]


def was_blocked(item: Blocked, maintenance: Maintenance) -> bool:
    """Return whether the status already lists the pod as blocked for the same reason."""
    return _key(item) in _since(maintenance)


def _key(item: Blocked) -> tuple[str, str, str]:
    return item.pod["namespace"], item.pod["name"], item.reason


def _since(maintenance: Maintenance) -> dict[tuple[str, str, str], object]:
    """Return since when each pod is blocked, by namespace, name and reason, according to the status."""
    return {(item["namespace"], item["name"], item["reason"]): item.get("since") for item in blocked_pods(maintenance)}


def _dated(item: Blocked, since: object, now: datetime) -> Blocked:
    if item.reason in BUDGET_REASONS or item.retry_after:
        return item
    began = moment_or_none(since)
    elapsed = now - began if began else timedelta()
    return replace(item, retry_after=timestamp(now + pause(elapsed)))


def _refused(pod: Pod, known: Mapping[str, Any] | None, now: datetime) -> Blocked | None:
    """Return the pod's refusal from the status if it has a plausible retry time, else None.

    A retry time more than twice `LONGEST` ahead comes from a wrong clock and is ignored.
    """
    after = moment_or_none(known.get("retryAfter")) if known else None
    if known is None or after is None or after > now + 2 * LONGEST:
        return None
    reason, message = str(known["reason"]), str(known.get("message") or "")
    return Blocked(identity(pod), reason, message, retry_after=timestamp(after))


def _closed_since(maintenance: Maintenance, now: datetime) -> datetime | None:
    """Return since when the node accepts only pods that tolerate its taints, or None if this is unknown.

    If the status does not report the cordon yet, the function returns the maintenance's creation time. It also does so
    if the reported time lies in the future, because a wrong clock wrote it.
    """
    told = condition(maintenance, "Cordoned").get("lastTransitionTime") if is_cordoned(maintenance) else None
    cordoned = moment_or_none(told)
    if cordoned is not None and cordoned <= now:
        return cordoned
    return moment_or_none(maintenance["metadata"].get("creationTimestamp"))


def _returned(pod: Pod, maintenance: Maintenance, now: datetime) -> Blocked | None:
    """Return a blocked entry if a controller created the pod on this node after the taints, else None.

    Such a pod tolerates the taints or bypassed the scheduler, so an eviction would only recreate it here. A pod that
    was scheduled while another client had uncordoned the node is treated the same way. Kubernetes timestamps have whole
    seconds. A pod from the same second as the cordon counts as created after it, because many evictions fit into one
    second.
    """
    owner, began = controller(pod), _closed_since(maintenance, now)
    if owner is None or began is None:
        return None
    created = moment(pod["metadata"]["creationTimestamp"])
    taints = (group(maintenance).drain_taint, UNSCHEDULABLE)
    maker = f"{owner['kind']} {owner['name']}"
    if created >= began and all(tolerates(pod, taint, NO_SCHEDULE) for taint in taints):
        what = "every taint" if tolerates_everything(pod) else "the taints of the maintenance"
        message = f"tolerates {what}; {maker} makes it again on this node: take that toleration off, or scale it down"
    elif created - began >= LANDING and is_cordoned(maintenance):
        message = (
            f"came although the node is closed, or while it was open; if the template of {maker}, or of what owns it, "
            "has spec.nodeName, it is made again on this node: take that out, or scale the owner down"
        )
    else:
        return None
    return Blocked(identity(pod), "Returns", message, retry_after=timestamp(created + pause(created - began)))
