"""Computes `status.blockedPods`: which pods are blocked, since when, and which pods are stuck while terminating."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from kube.budgets import BlockedPod
from kube.paths import Object
from kube.pods import Pod, build_name_reference, format_key, is_terminating
from kube.text_limits import truncate
from kube.times import format_time, parse_time_or_none

MAX_NAMED_PODS = 5
"""Maximum number of blocked pods that `format_summary` names."""
MAX_MESSAGE_CHARACTERS = 1024
"""Maximum length of one pod's message, in characters."""
REMOVAL_TOLERANCE = timedelta(seconds=10)
"""Time after the grace period in which a busy kubelet kills the containers and removes the pod."""


def build_blocked_pods(
    reported: Iterable[Mapping[str, Any]],
    previous: Iterable[Mapping[str, Any]],
    pending: Collection[Pod],
    now: datetime,
) -> list[Object]:
    """Return the entries of `status.blockedPods`, sorted by namespace and name.

    These are the `reported` blocked pods that are still pending and not terminating, and the pods that are stuck while
    terminating. `since` is kept from `previous` if the pod was already blocked for the same reason; otherwise it is
    `now`.
    """
    waiting = {format_key(pod) for pod in pending if not is_terminating(pod)}
    items = [{k: v for k, v in item.items() if k != "uid"} for item in reported]
    items = [{**item, "message": truncate(str(item.get("message") or ""), MAX_MESSAGE_CHARACTERS)} for item in items]
    items = [item for item in items if f"{item['namespace']}/{item['name']}" in waiting]
    items += [stuck for stuck in (_build_stuck_pod(pod, now) for pod in pending) if stuck]
    since = {get_blocking_key(item): parse_time_or_none(item.get("since")) for item in previous}
    dated = [{**item, "since": format_time(since.get(get_blocking_key(item)) or now)} for item in items]
    return sorted(dated, key=lambda item: (item["namespace"], item["name"]))


def get_blocking_key(blocked_pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of an entry in `status.blockedPods`: the pod, the reason and the budget."""
    return tuple(blocked_pod.get(field) for field in ("namespace", "name", "reason", "budget"))


def format_summary(blocked: Iterable[BlockedPod]) -> str:
    """Summarize blocked pods in one line for `status.lastError`: the first five by name, grouped by message."""
    named = sorted((item.key, item.message) for item in blocked)
    names_by_message: dict[str, list[str]] = {}
    for name, message in named[:MAX_NAMED_PODS]:
        names_by_message.setdefault(message, []).append(name)
    suffix = [f"and {len(named) - MAX_NAMED_PODS} more"] if len(named) > MAX_NAMED_PODS else []
    return "; ".join([*(f"{', '.join(names)}: {message}" for message, names in names_by_message.items()), *suffix])


def _build_stuck_pod(pod: Pod, now: datetime) -> Object | None:
    """Return the status entry of a pod that outlived its grace period, or None if the pod is not stuck.

    The API server sets deletionTimestamp to the end of the grace period.
    """
    metadata = pod["metadata"]
    end = parse_time_or_none(metadata.get("deletionTimestamp"))
    if not end or now <= end + REMOVAL_TOLERANCE:
        return None
    finalizers = metadata.get("finalizers") or []
    reason = "Finalizers" if finalizers else "Terminating"
    names = truncate(", ".join(finalizers), MAX_MESSAGE_CHARACTERS)
    message = (
        f"finalizers {names} delay the deletion of the pod: their controllers must remove them"
        if finalizers
        else "its grace period has ended and the kubelet has not stopped it: check the node"
    )
    return {**build_name_reference(pod), "reason": reason, "message": message, "budget": ""}
