"""Explains why a replay of `evict` has a different reply: pods or budgets in the recorded reply changed. No I/O.

A deleted pod does not explain a difference in another pod that a budget blocked. If a pod was blocked for a different
reason, such as the order of evictions, the reply does not show which pod it waited for. Any changed pod may then be
the cause.
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


def explain_pod_difference(
    pod_name: str, recorded_reply: StructuredEvent, current_reply: StructuredEvent, changes: ObjectChanges
) -> str:
    """Explain why the replies differ for the pod `namespace/name`; return "" if no known change explains it."""
    recorded_uid = _find_pod_uid(recorded_reply, pod_name)
    if not recorded_uid:
        return ""
    if change := changes.get_change(POD_KIND, recorded_uid):
        return f"pod {pod_name} {change.value}"
    blocked = next((pod for pod in parse_blocked_pods(recorded_reply.get("data")) if pod["uid"] == recorded_uid), None)
    if blocked is None or not _find_pod_uid(current_reply, pod_name):
        return ""
    if not _is_blocked_by_budget(blocked):
        return _summarize_pod_changes(recorded_reply, changes)
    blocked_uids = {pod["uid"] for pod in parse_blocked_pods(current_reply.get("data"))}
    return _explain_budget(blocked, changes, is_still_blocked=recorded_uid in blocked_uids)


def explain_reply_difference(recorded_reply: StructuredEvent, changes: ObjectChanges) -> str:
    """Explain why the replies differ as a whole, by any changed budget or pod; return "" if none has changed."""
    explanations = (_explain_budget(pod, changes) for pod in parse_blocked_pods(recorded_reply.get("data")))
    return next(filter(None, explanations), "") or _summarize_pod_changes(recorded_reply, changes)


def explain_missing_reply(recorded_reply: StructuredEvent, changes: ObjectChanges) -> str:
    """Explain why `evict` no longer replies, if all pods in the recorded reply have changed; otherwise return ""."""
    pods = parse_pods(recorded_reply.get("data"))
    has_each_changed = all(changes.get_change(POD_KIND, pod["uid"]) for pod in pods)
    return _summarize_pod_changes(recorded_reply, changes) if has_each_changed else ""


def _find_pod_uid(reply: StructuredEvent, pod_name: str) -> str:
    """Return the uid of the pod `namespace/name` in a reply, "" if the reply does not contain the pod."""
    pods = parse_pods(reply.get("data"))
    return next((pod["uid"] for pod in pods if f"{pod['namespace']}/{pod['name']}" == pod_name), "")


def _explain_budget(blocked_pod: Mapping[str, Any], changes: ObjectChanges, *, is_still_blocked: bool = True) -> str:
    """Describe how the budget that blocked a pod has changed; return "" if the budget is unchanged or unknown.

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

    The budget then admitted no pod, even if its counts suggest otherwise: another node's pass used its evictions.
    """
    return blocked_pod.get("reason") == "DisruptionBudget" and parse_blocking_budget(blocked_pod) is not None


def _have_counts_changed(blocked_pod: Mapping[str, Any], counts: BudgetCounts, *, is_still_blocked: bool) -> bool:
    """Return whether the budget's counts differ from those in the recorded reply.

    The reply has no counts for a new budget, or for a rejection by the API server. If the pod is still blocked, the
    current reply has counts, which is a difference.
    """
    healthy, needed = blocked_pod.get("healthy"), blocked_pod.get("needed")
    return is_still_blocked if healthy is None else (healthy, needed) != (counts.healthy, counts.needed)


def _summarize_pod_changes(recorded_reply: StructuredEvent, changes: ObjectChanges) -> str:
    """Describe in one line how the pods in the recorded reply have changed; return "" if none has changed."""
    changed = list(_iter_pod_changes(recorded_reply, changes))
    return changed[0] + (f" (one of {len(changed)} changed pods)" if len(changed) > 1 else "") if changed else ""


def _iter_pod_changes(recorded_reply: StructuredEvent, changes: ObjectChanges) -> Iterator[str]:
    for pod in parse_pods(recorded_reply.get("data")):
        if change := changes.get_change(POD_KIND, pod["uid"]):
            yield f"pod {pod['namespace']}/{pod['name']} {change.value}"
