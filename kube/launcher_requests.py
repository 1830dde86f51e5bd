"""Launcher pods whose eviction is sent although a budget refuses it: so KubeVirt hears of the drain. Pure.

Its virt-api refuses the eviction as well, and has the virtual machine migrate; without virt-api nothing comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kube.budgets import WAITS_FOR_KUBEVIRT, Blocked, Plan
from kube.pods import Pod, uid


def request(plan: Plan, pods: Iterable[Pod], is_due: Callable[[Blocked], bool]) -> dict[str, Blocked]:
    """Have the plan send the evictions that are due, of these pods; uid → why the pod is blocked all the same."""
    found = {item.pod["uid"]: item for item in plan.blocked if item.reason == WAITS_FOR_KUBEVIRT and is_due(item)}
    for pod in pods:
        if uid(pod) in found:
            budget = f"{pod['metadata']['namespace']}/{found[uid(pod)].budget}"
            plan.queues.setdefault(budget, []).append(pod)
    plan.blocked[:] = [item for item in plan.blocked if item.pod["uid"] not in found]
    return found


def worded(blocked: Iterable[Blocked], requested: Mapping[str, Blocked]) -> list[Blocked]:
    """The same, but for those requested as their budget says it: that they were refused was meant."""
    return [requested.get(item.pod["uid"], item) for item in blocked]
