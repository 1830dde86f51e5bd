"""Groups blocked pods by their cause, and suggests what would unblock them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kube.text_limits import format_count, format_first_names
from kube.times import parse_time_or_none

BlockedPodEntry = Mapping[str, Any]
"""An entry of `status.blockedPods`."""


class Remedy(NamedTuple):
    """What would unblock a pod, and the command that does it, "" if there is none."""

    text: str
    command: str = ""

    def __str__(self) -> str:
        """Return the text and the command on one line."""
        return f"{self.text}: {self.command}" if self.command else self.text


@dataclass(frozen=True)
class BlockedGroup:
    """Pods that one cause blocks.

    Attributes:
        pods: The pods as `namespace/name`.
        message: The explanation, from the first pod.
        budget: The name of the budget, several names for `MultipleBudgets`, "" if no budget is the cause.
        counts: The budget's healthy and needed pods, such as `2/2`; "" if unknown.
        since: Time since which the first of the pods has been blocked, "" if unknown.
        retry_after: Time of the next attempt in UTC, such as `12:01:05`; "" if an event triggers it.
        remedies: The alternatives that unblock the pods; empty if only the message states what unblocks them.
    """

    pods: tuple[str, ...]
    reason: str
    message: str
    budget: str
    counts: str
    since: str
    retry_after: str
    remedies: tuple[Remedy, ...]

    def format_pods(self, max_named: int = 1) -> str:
        """Return the first names, and the number of the other pods."""
        return format_first_names(self.pods, max_named)


def group_blocked_pods(blocked_pods: Iterable[BlockedPodEntry]) -> list[BlockedGroup]:
    """Return one group per cause, the groups with the most pods first.

    A cause is a budget, or else the reason and message, which may block pods in several namespaces.
    """
    by_cause: dict[tuple[str, ...], list[BlockedPodEntry]] = {}
    for pod in blocked_pods:
        budget, message = str(pod.get("budget") or ""), str(pod.get("message") or "")
        cause = (pod["namespace"] if budget else "", pod["reason"], budget, "" if budget else message)
        by_cause.setdefault(cause, []).append(pod)
    return [_build_group(pods) for pods in sorted(by_cause.values(), key=len, reverse=True)]


def _build_group(pods: Sequence[BlockedPodEntry]) -> BlockedGroup:
    first = pods[0]
    retry_times = [time for pod in pods if (time := parse_time_or_none(pod.get("retryAfter")))]
    return BlockedGroup(
        pods=tuple(f"{pod['namespace']}/{pod['name']}" for pod in pods),
        reason=first["reason"],
        message=str(first.get("message") or "see the events of the pod"),
        budget=str(first.get("budget") or ""),
        counts=f"{first['healthy']}/{first['needed']}" if "healthy" in first and "needed" in first else "",
        since=min((str(pod["since"]) for pod in pods if pod.get("since")), default=""),
        retry_after=f"{min(retry_times):%H:%M:%S}" if retry_times else "",
        remedies=suggest_remedies(first),
    )


def suggest_remedies(blocked_pod: BlockedPodEntry) -> tuple[Remedy, ...]:
    """Return the alternatives that would unblock a pod; none if the message of the pod states what unblocks it."""
    budget = blocked_pod.get("budget")
    if blocked_pod["reason"] != "DisruptionBudget" or not budget:
        return ()
    edit = f"kubectl -n {blocked_pod['namespace']} edit pdb {budget}"
    if blocked_pod.get("allowsNone"):
        return (Remedy("a looser budget (this one allows no eviction, however many pods are ready)", edit),)
    lacking = max(1, blocked_pod.get("needed", 0) + 1 - blocked_pod.get("healthy", 0))
    more_pods = f"{format_count(lacking, 'more ready pod')} under this budget"
    return Remedy(f"{more_pods} (repair unready pods, or scale up the workload)"), Remedy("or a looser budget", edit)
