"""Explains why a reply of `evict` differs, by changes of the pods that it named and of their budgets. No I/O.

A deleted pod does not explain a difference in another pod that a budget blocked. A pod may also be blocked for another
reason, such as waiting for its turn. The reply then does not show which pod it waited for, so that any changed pod may
be the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eventing.journal.entries import Structured
from eventing.replay.object_changes import BUDGET, POD, Changes, Counts, blocked_in, budget_over, pods_in
from kube.text_limits import counted


def why_pod(name: str, before: Structured, after: Structured, changes: Changes) -> str:
    """Explain why `pods.evicted` now differs in the pod `namespace/name`; return "" if nothing explains it."""
    was = _uid(before, name)
    if not was:
        return ""
    if change := changes.of(POD, was):
        return f"pod {name} {change.value}"
    blocked = next((each for each in blocked_in(before.get("data")) if each["uid"] == was), None)
    if blocked is None or not _uid(after, name):
        return ""
    if not _is_kept(blocked):
        return _changed_pods(before, changes)
    return _changed_budget(blocked, changes, still=was in {each["uid"] for each in blocked_in(after.get("data"))})


def why_pods(before: Structured, changes: Changes) -> str:
    """Explain by a changed budget or pod why `pods.evicted` differs as a whole."""
    told = (_changed_budget(each, changes) for each in blocked_in(before.get("data")))
    return next(filter(None, told), "") or _changed_pods(before, changes)


def why_all_pods(before: Structured, changes: Changes) -> str:
    """Explain a missing report if all pods that the recorded reply named have changed."""
    pods = pods_in(before.get("data"))
    return _changed_pods(before, changes) if all(changes.of(POD, pod["uid"]) for pod in pods) else ""


def _uid(reply: Structured, name: str) -> str:
    """Return the uid of a pod that a reply names, "" if the reply does not name it."""
    pods = pods_in(reply.get("data"))
    return next((pod["uid"] for pod in pods if f"{pod['namespace']}/{pod['name']}" == name), "")


def _changed_budget(blocked: Mapping[str, Any], changes: Changes, *, still: bool = True) -> str:
    """Describe the change of the budget that blocked a pod; return "" if it is unchanged or unknown.

    `still` is whether the pod is blocked in the current reply as well.
    """
    over = budget_over(blocked)
    if not over:
        return ""
    name = "/".join(over)
    if change := changes.of(BUDGET, name):
        return f"{BUDGET} {name} {change.value}"
    now = changes.budgets.get(name)
    if now is None or not (now.allowed or _counts_otherwise(blocked, now, still=still)):
        return ""
    lets = f", and lets {counted(now.allowed, 'pod')} go" if now.allowed else ""
    return f"{BUDGET} {name} needs {now.needed} healthy pods and has {now.healthy} now{lets}"


def _is_kept(blocked: Mapping[str, Any]) -> bool:
    """Return whether exactly one budget blocks the pod.

    The budget then admitted no pod, even if its counts suggest otherwise: another node's pass was faster.
    """
    return blocked.get("reason") == "DisruptionBudget" and budget_over(blocked) is not None


def _counts_otherwise(blocked: Mapping[str, Any], now: Counts, *, still: bool) -> bool:
    """Return whether the budget's counts differ from those in the recorded reply.

    The reply has no counts for a new budget, or for a rejection by the API server. If the pod is `still` blocked, the
    current reply has counts, which is a difference.
    """
    healthy, needed = blocked.get("healthy"), blocked.get("needed")
    return still if healthy is None else (healthy, needed) != (now.healthy, now.needed)


def _changed_pods(before: Structured, changes: Changes) -> str:
    """Describe the changes of the pods that a reply names, in one line; return "" if there are none."""
    changed = list(_changed(before, changes))
    return changed[0] + (f", and so on: {len(changed)} pods" if len(changed) > 1 else "") if changed else ""


def _changed(before: Structured, changes: Changes) -> Iterator[str]:
    for pod in pods_in(before.get("data")):
        if change := changes.of(POD, pod["uid"]):
            yield f"pod {pod['namespace']}/{pod['name']} {change.value}"
