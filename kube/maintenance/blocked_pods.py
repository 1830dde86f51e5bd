"""The blocked pods of a status: who is still so, since when, and who is stuck. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from kube.budgets import Blocked
from kube.paths import Object
from kube.pods import Pod, is_terminating, key, name_of
from kube.times import moment_or_none, timestamp
from kube.words import shortened

NAMED = 5
"""Blocked pods that a line names."""
LONGEST_MESSAGE = 1024
"""Characters of what is said about one pod."""


def still_blocked(
    known: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]], pending: Collection[Pod], now: datetime
) -> list[Object]:
    """Those `known` to be blocked that are still there, and those that are stuck, as the status lists them.

    Each with the time since when it is blocked for this reason, which is that of `before` where it was so then.
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
    """What makes a blocked pod the same as before: it, and the reason for which it waits."""
    return tuple(item.get(field) for field in ("namespace", "name", "reason", "budget"))


def summary(blocked: Iterable[Blocked]) -> str:
    """One line for `status.lastError`: why pods are blocked, those of one reason together, the first five by name."""
    named = sorted((item.key, item.message) for item in blocked)
    together: dict[str, list[str]] = {}
    for name, message in named[:NAMED]:
        together.setdefault(message, []).append(name)
    more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
    return "; ".join([*(f"{', '.join(names)}: {message}" for message, names in together.items()), *more])


def _stuck(pod: Pod, now: datetime) -> Object | None:
    """A pod whose grace period is over and that is still there (the API server puts the end into deletionTimestamp)."""
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
