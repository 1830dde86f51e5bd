"""What explains that `evict` answers otherwise now: what became of each pod that it named, and of the budget over it.

Pure. A pod that is gone explains nothing about another one that a budget kept. Where a pod waited for something else,
for its turn say, no answer tells behind whom: any pod that is gone may be the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eventing.journal.entries import Structured
from eventing.replay.changes import BUDGET, POD, Changes, Counts, blocked_in, budget_over, pods_in
from kube.words import counted


def why_pod(name: str, before: Structured, after: Structured, changes: Changes) -> str:
    """What explains that `pods.evicted` tells something else of the pod `namespace/name`, "" for nothing."""
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
    """What explains that it tells something else of all of them together: a budget or a pod that has changed."""
    told = (_changed_budget(each, changes) for each in blocked_in(before.get("data")))
    return next(filter(None, told), "") or _changed_pods(before, changes)


def why_all_pods(before: Structured, changes: Changes) -> str:
    """What explains that it tells nothing of them any more: none that it named is there as it was."""
    pods = pods_in(before.get("data"))
    return _changed_pods(before, changes) if all(changes.of(POD, pod["uid"]) for pod in pods) else ""


def _uid(reply: Structured, name: str) -> str:
    """The uid of a pod that a reply names, "" when it does not."""
    pods = pods_in(reply.get("data"))
    return next((pod["uid"] for pod in pods if f"{pod['namespace']}/{pod['name']}" == name), "")


def _changed_budget(blocked: Mapping[str, Any], changes: Changes, *, still: bool = True) -> str:
    """How the budget that kept a pod, and may do so `still`, has changed; "" where it has not, or nobody knows."""
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
    """Whether one budget keeps the pod; it lets none go then, whatever it counts: another node's look was quicker."""
    return blocked.get("reason") == "DisruptionBudget" and budget_over(blocked) is not None


def _counts_otherwise(blocked: Mapping[str, Any], now: Counts, *, still: bool) -> bool:
    """Whether what was recorded of a budget is not so now.

    A new budget's, and the API server's own refusals have no counts: of who is kept `still` there are some now.
    """
    healthy, needed = blocked.get("healthy"), blocked.get("needed")
    return still if healthy is None else (healthy, needed) != (now.healthy, now.needed)


def _changed_pods(before: Structured, changes: Changes) -> str:
    """How the pods that a reply names have changed, in one line; "" when none has."""
    changed = list(_changed(before, changes))
    return changed[0] + (f", and so on: {len(changed)} pods" if len(changed) > 1 else "") if changed else ""


def _changed(before: Structured, changes: Changes) -> Iterator[str]:
    for pod in pods_in(before.get("data")):
        if change := changes.of(POD, pod["uid"]):
            yield f"pod {pod['namespace']}/{pod['name']} {change.value}"
