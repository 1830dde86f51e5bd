"""Computes `status.blockedPods`: which pods are blocked, since when, and which pods are stuck while terminating."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from kube.budgets import Blocked
from kube.paths import Object
from kube.pods import Pod, is_terminating, key, name_of
from kube.times import moment_or_none, timestamp
from kube.text_limits import shortened

NAMED = 5
"""Maximum number of blocked pods that `summary` names."""
LONGEST_MESSAGE = 1024
"""Maximum length of one pod's message, in characters."""


def still_blocked(
    known: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]], pending: Collection[Pod], now: datetime
) -> list[Object]:
    """Return the entries of `status.blockedPods`, sorted by namespace and name.

    These are the `known` blocked pods that are still pending and not terminating, and the pods that are stuck while
    terminating. `since` is kept from `before` if the pod was already blocked for the same reason; otherwise it is
    `now`.
    """
    waiting = {key(pod) for pod in pending if not is_terminating(pod)}
    items = [{k: v for k, v in item.items() if k != "uid"} for item in known]
    items = [{**item, "message": shortened(str(item.get("message") or ""), LONGEST_MESSAGE)} for item in items]
    items = [item for item in items if f"{item['namespace']}/{item['name']}" in waiting]
    items += [stuck for stuck in (_stuck(pod, now) for pod in pending) if stuck]
    since = {why_blocked(item): moment_or_none(item.get("since")) for item in before}
    dated = [{**item, "since": timestamp(since.get(why_blocked(item)) or now)} for item in items]
    return sorted(dated, key=lambda item: (item["namespace"], item["name"]))


def why_blocked(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key that identifies a blocked entry over time: the pod, the reason and the budget."""
    return tuple(item.get(field) for field in ("namespace", "name", "reason", "budget"))


def summary(blocked: Iterable[Blocked]) -> str:
    """Summarize blocked pods in one line for `status.lastError`: the first five by name, grouped by message."""
    named = sorted((item.key, item.message) for item in blocked)
    together: dict[str, list[str]] = {}
    for name, message in named[:NAMED]:
        together.setdefault(message, []).append(name)
    more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
    return "; ".join([*(f"{', '.join(names)}: {message}" for message, names in together.items()), *more])


def _stuck(pod: Pod, now: datetime) -> Object | None:
    """Return the status entry of a pod that outlived its grace period, or None if the pod is not stuck.

    The API server sets deletionTimestamp to the end of the grace period.
    """
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp") or timestamp(now) <= metadata["deletionTimestamp"]:
        return None
    finalizers = metadata.get("finalizers") or []
    reason = "Finalizers" if finalizers else "Terminating"
    names = shortened(", ".join(finalizers), LONGEST_MESSAGE)
    message = (
        f"finalizers {names} keep the deleted pod: their owner must take them off"
        if finalizers
        else "its grace period is over and the kubelet has not ended it: look at the node"
    )
    return {**name_of(pod), "reason": reason, "message": message, "budget": ""}
