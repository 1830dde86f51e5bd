"""Selects virt-launcher pods to evict although a budget refuses it, so that KubeVirt migrates them. Pure functions.

KubeVirt's virt-api denies such an eviction too, but migrates the VMI. Without virt-api the eviction has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kube.budgets import WAITS_FOR_KUBEVIRT, Blocked, Plan
from kube.pods import Pod, uid


def request(plan: Plan, pods: Iterable[Pod], is_due: Callable[[Blocked], bool]) -> dict[str, Blocked]:
    """Move the pods whose eviction is due from `blocked` to the queues of the plan.

    Returns, by uid, the reason why each of these pods remains blocked although its eviction is sent.
    """
    found = {item.pod["uid"]: item for item in plan.blocked if item.reason == WAITS_FOR_KUBEVIRT and is_due(item)}
    for pod in pods:
        if uid(pod) in found:
            budget = f"{pod['metadata']['namespace']}/{found[uid(pod)].budget}"
            plan.queues.setdefault(budget, []).append(pod)
    plan.blocked[:] = [item for item in plan.blocked if item.pod["uid"] not in found]
    return found


def worded(blocked: Iterable[Blocked], requested: Mapping[str, Blocked]) -> list[Blocked]:
    """Return the blocked pods, where requested ones keep their budget's reason: their refusal was expected."""
    return [requested.get(item.pod["uid"], item) for item in blocked]
