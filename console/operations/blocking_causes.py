"""Groups blocked pods by cause, so that all pods under one budget are one line with a count. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from console.operations.blocked_pods import Remedy, suggest_remedies
from kube.maintenance.drain_flags import POD_SELECTOR, REMEDIES
from kube.paths import Object

FLAG_REASONS = (*REMEDIES, POD_SELECTOR)
"""Reasons that stand for a drain option, which blocks pods in all namespaces for the same cause."""


class BlockingCause(NamedTuple):
    """One cause and the pods that it blocks.

    Attributes:
        namespace: The namespace of the budget or of the pods; "" for a drain option.
        budget: The name of the budget, several names for `MultipleBudgets`, "" if no budget is the cause.
        message: The explanation, from the first pod.
        remedies: The alternatives that unblock the pods, each with its command if there is one.
        pods: The entries of the blocked pods, as in `status.blockedPods`.
    """

    reason: str
    namespace: str
    budget: str
    message: str
    remedies: tuple[Remedy, ...]
    pods: list[Mapping[str, Any]]

    @property
    def subject(self) -> str:
        """Return the budgets as `namespace/name`, or the reason if no budget is the cause."""
        if not self.budget:
            return self.reason
        return ", ".join(f"{self.namespace}/{name}" for name in self.budget.split(", "))

    def as_data(self) -> Object:
        """Return the cause as JSON data."""
        names = [{field: pod[field] for field in ("namespace", "name")} for pod in self.pods]
        return {**self._asdict(), "remedies": list(map(str, self.remedies)), "pods": names, "count": len(names)}


def group_by_cause(blocked_pods: Iterable[Mapping[str, Any]]) -> list[BlockingCause]:
    """Group entries of `status.blockedPods` by cause: the causes with the most pods come first."""
    pods_by_cause: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for blocked_pod in blocked_pods:
        pods_by_cause.setdefault(_build_cause_key(blocked_pod), []).append(blocked_pod)
    causes = [_build_cause(pods) for pods in pods_by_cause.values()]
    return sorted(causes, key=lambda cause: (-len(cause.pods), cause.namespace, cause.budget, cause.reason))


def _build_cause_key(blocked_pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key of the cause: the reason with the budget, the option, or the text that explains it."""
    reason, budget = str(blocked_pod["reason"]), str(blocked_pod.get("budget") or "")
    if reason in FLAG_REASONS:
        return (reason,)
    return (reason, blocked_pod["namespace"], budget, "" if budget else str(blocked_pod.get("message") or ""))


def _build_cause(pods: list[Mapping[str, Any]]) -> BlockingCause:
    first, reason = pods[0], str(pods[0]["reason"])
    return BlockingCause(
        reason,
        "" if reason in FLAG_REASONS else str(first["namespace"]),
        str(first.get("budget") or ""),
        str(first.get("message") or ""),
        suggest_remedies(first),
        pods,
    )
