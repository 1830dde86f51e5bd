"""Explains why a reply of `evict` differs, by changes to the pods that it named and to their budgets. No I/O.

A deleted pod does not explain a difference in another pod that a budget blocked. If a pod was blocked for a different
reason, such as waiting for its turn, the reply does not show which pod it waited for. Any changed pod may then be the
cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eventing.journal.entries import StructuredEvent
from eventing.replay.object_changes import (
    BUDGET_KIND,
    POD_KIND,
    BudgetCounts,
    ObjectChanges,
    parse_blocked_pods,
    parse_blocking_budget,
    parse_pods,
)
from kube.text_limits import format_count


def explain_pod(name: str, before: StructuredEvent, after: StructuredEvent, changes: ObjectChanges) -> str:
    """Explain why `pods.evicted` now differs for the pod `namespace/name`; return "" if nothing explains it."""
    recorded_uid = _find_pod_uid(before, name)
    if not recorded_uid:
        return ""
    if change := changes.get_change(POD_KIND, recorded_uid):
        return f"pod {name} {change.value}"
    blocked = next((pod for pod in parse_blocked_pods(before.get("data")) if pod["uid"] == recorded_uid), None)
    if blocked is None or not _find_pod_uid(after, name):
        return ""
    if not _is_blocked_by_budget(blocked):
        return _summarize_pod_changes(before, changes)
    return _explain_budget(
        blocked, changes, is_still_blocked=recorded_uid in {pod["uid"] for pod in parse_blocked_pods(after.get("data"))}
    )


def explain_pods(before: StructuredEvent, changes: ObjectChanges) -> str:
    """Explain why `pods.evicted` differs as a whole, by a changed budget or pod; return "" if nothing explains it."""
    explanations = (_explain_budget(pod, changes) for pod in parse_blocked_pods(before.get("data")))
    return next(filter(None, explanations), "") or _summarize_pod_changes(before, changes)


def explain_all_pods(before: StructuredEvent, changes: ObjectChanges) -> str:
    """Explain a missing report if all pods that the recorded reply named have changed."""
    pods = parse_pods(before.get("data"))
    return (
        _summarize_pod_changes(before, changes) if all(changes.get_change(POD_KIND, pod["uid"]) for pod in pods) else ""
    )


def _find_pod_uid(reply: StructuredEvent, name: str) -> str:
    """Return the uid of a pod that a reply names, "" if the reply does not name it."""
    pods = parse_pods(reply.get("data"))
    return next((pod["uid"] for pod in pods if f"{pod['namespace']}/{pod['name']}" == name), "")


def _explain_budget(blocked_pod: Mapping[str, Any], changes: ObjectChanges, *, is_still_blocked: bool = True) -> str:
    """Describe how the budget that blocked a pod has changed; return "" if it is unchanged or unknown.

    `is_still_blocked` is whether the current reply also reports the pod as blocked.
    """
    budget = parse_blocking_budget(blocked_pod)
    if not budget:
        return ""
    name = "/".join(budget)
    if change := changes.get_change(BUDGET_KIND, name):
        return f"{BUDGET_KIND} {name} {change.value}"
    counts = changes.budgets.get(name)
    if counts is None or not (
        counts.allowed or _have_counts_changed(blocked_pod, counts, is_still_blocked=is_still_blocked)
    ):
        return ""
    allowance = f", and allows {format_count(counts.allowed, 'eviction')}" if counts.allowed else ""
    return f"{BUDGET_KIND} {name} needs {counts.needed} healthy pods and has {counts.healthy} now{allowance}"


def _is_blocked_by_budget(blocked_pod: Mapping[str, Any]) -> bool:
    """Return whether exactly one budget blocks the pod.

    The budget then admitted no pod, even if its counts suggest otherwise: another node's pass was faster.
    """
    return blocked_pod.get("reason") == "DisruptionBudget" and parse_blocking_budget(blocked_pod) is not None


def _have_counts_changed(blocked_pod: Mapping[str, Any], counts: BudgetCounts, *, is_still_blocked: bool) -> bool:
    """Return whether the budget's counts differ from those in the recorded reply.

    The reply has no counts for a new budget, or for a rejection by the API server. If the pod is still blocked, the
    current reply has counts, which is a difference.
    """
    healthy, needed = blocked_pod.get("healthy"), blocked_pod.get("needed")
    return is_still_blocked if healthy is None else (healthy, needed) != (counts.healthy, counts.needed)


def _summarize_pod_changes(before: StructuredEvent, changes: ObjectChanges) -> str:
    """Describe in one line how the pods that a reply names have changed; return "" if they have not."""
    changed = list(_iter_pod_changes(before, changes))
    return changed[0] + (f" (one of {len(changed)} changed pods)" if len(changed) > 1 else "") if changed else ""


def _iter_pod_changes(before: StructuredEvent, changes: ObjectChanges) -> Iterator[str]:
    for pod in parse_pods(before.get("data")):
        if change := changes.get_change(POD_KIND, pod["uid"]):
            yield f"pod {pod['namespace']}/{pod['name']} {change.value}"
