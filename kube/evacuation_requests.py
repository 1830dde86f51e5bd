"""Selects virt-launcher pods to evict although a budget refuses it, so that KubeVirt migrates them. Pure functions.

KubeVirt's virt-api denies such an eviction too, but migrates the VMI. Without virt-api the eviction has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kube.budgets import WAITS_FOR_KUBEVIRT, BlockedPod, EvictionPlan
from kube.pods import Pod, get_uid


def add_evacuation_requests(
    plan: EvictionPlan, virt_launcher_pods: Iterable[Pod], is_due: Callable[[BlockedPod], bool]
) -> dict[str, BlockedPod]:
    """Move the pods whose eviction is due from `blocked` to the queues of the plan.

    Returns, by uid, the reason why each of these pods remains blocked although its eviction is sent.
    """
    requested = {item.pod["uid"]: item for item in plan.blocked if item.reason == WAITS_FOR_KUBEVIRT and is_due(item)}
    for pod in virt_launcher_pods:
        if get_uid(pod) in requested:
            budget = f"{pod['metadata']['namespace']}/{requested[get_uid(pod)].budget}"
            plan.queues_by_budget.setdefault(budget, []).append(pod)
    plan.blocked[:] = [item for item in plan.blocked if item.pod["uid"] not in requested]
    return requested


def replace_expected_refusals(
    blocked: Iterable[BlockedPod], expected_by_uid: Mapping[str, BlockedPod]
) -> list[BlockedPod]:
    """Return the blocked pods, where requested ones keep their budget's reason: their refusal was expected."""
    return [expected_by_uid.get(item.pod["uid"], item) for item in blocked]
