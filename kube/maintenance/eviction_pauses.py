"""Which pods are left alone for a while, since evicting them changed nothing: they come back, or are refused (rule 9).

The pause grows with the time that it has been so, up to a minute. It is reckoned from what the objects show, so that
every hint, every process and the tick obey it. Pure.
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
"""Five pods that return at once are evicted at most four times in the first minute, and once in each later one."""
LANDING = timedelta(seconds=2)
"""Behind the cordon the scheduler may still place what it took up before."""
BUDGET_REASONS = ("DisruptionBudget", "MultipleBudgets", *LAUNCHER_REASONS)
"""Whoever waits for a budget is told when it opens; its pods are not sent before, and need no pause."""
UNDECIDED = ("NoAnswer", "Changing", "Busy", "NoTime")
"""Nobody refused the eviction, and it was not done: with progress elsewhere it is tried again at once."""


def pause(elapsed: timedelta) -> timedelta:
    """As long as it has been so already, within bounds: each is about twice the one before."""
    return min(max(elapsed, SHORTEST), LONGEST)


def is_resting(announced: Mapping[str, Any] | None, now: datetime) -> bool:
    """Whether what was undone, and done again, so often as this Event has counted, is left to the next tick for now."""
    if announced is None:
        return False
    first, last = (moment_or_none(announced.get(name)) for name in ("firstTimestamp", "lastTimestamp"))
    return bool(first and last and abs(now - last) < pause(last - first))  # else a clock that was set back rests it


def parted(pods: Iterable[Pod], maintenance: Maintenance, now: datetime) -> tuple[list[Pod], list[Blocked]]:
    """The pods to evict, and those that are left alone for now, with the reason.

    What was refused under another spec is tried under this one at once (DRN-1a).
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
    """The same, those that are refused for another reason than a budget with the time of the next attempt."""
    known = _since(maintenance)
    return [_dated(item, known.get(_key(item)), now) for item in blocked]


def was_blocked(item: Blocked, maintenance: Maintenance) -> bool:
    """Whether the status has it for the same reason already."""
    return _key(item) in _since(maintenance)


def _key(item: Blocked) -> tuple[str, str, str]:
    return item.pod["namespace"], item.pod["name"], item.reason


def _since(maintenance: Maintenance) -> dict[tuple[str, str, str], object]:
    """Since when the status has which pod blocked, and why."""
    return {(item["namespace"], item["name"], item["reason"]): item.get("since") for item in blocked_pods(maintenance)}


def _dated(item: Blocked, since: object, now: datetime) -> Blocked:
    if item.reason in BUDGET_REASONS or item.retry_after:
        return item
    began = moment_or_none(since)
    elapsed = now - began if began else timedelta()
    return replace(item, retry_after=timestamp(now + pause(elapsed)))


def _refused(pod: Pod, known: Mapping[str, Any] | None, now: datetime) -> Blocked | None:
    """As the status has it, where that names a time. One that is far ahead is of a clock that was wrong."""
    after = moment_or_none(known.get("retryAfter")) if known else None
    if known is None or after is None or after > now + 2 * LONGEST:
        return None
    reason, message = str(known["reason"]), str(known.get("message") or "")
    return Blocked(identity(pod), reason, message, retry_after=timestamp(after))


def _closed_since(maintenance: Maintenance, now: datetime) -> datetime | None:
    """Since when the node takes only pods that tolerate it; before the status says so, since that was asked for.

    A time that is still to come is of a clock that was wrong.
    """
    told = condition(maintenance, "Cordoned").get("lastTransitionTime") if is_cordoned(maintenance) else None
    cordoned = moment_or_none(told)
    if cordoned is not None and cordoned <= now:
        return cordoned
    return moment_or_none(maintenance["metadata"].get("creationTimestamp"))


def _returned(pod: Pod, maintenance: Maintenance, now: datetime) -> Blocked | None:
    """A pod that a controller made here after the taints: evicted, it would be back at once.

    It tolerates them, or passed the scheduler by. One that came while somebody had opened the node is taken for such.
    Kubernetes writes seconds: one of the very second of the cordon counts, since many rounds fit into a second.
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
