"""Selects the virt-launcher pods for which a refused eviction request makes KubeVirt migrate the VMI.

KubeVirt's virt-api denies the eviction of a virt-launcher pod, but starts to migrate its VMI. Without virt-api, the
disruption budget blocks the eviction, which then has no effect. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kube.budgets import WAITS_FOR_KUBEVIRT, BlockedPod, EvictionPlan
from kube.pods import Pod, get_uid


def add_evacuation_requests(
    plan: EvictionPlan, virt_launcher_pods: Iterable[Pod], is_due: Callable[[BlockedPod], bool]
) -> dict[str, BlockedPod]:
    """Move the pods whose eviction is due from the plan's `blocked` list to its queues.

    Returns the moved `BlockedPod` objects by the pod's uid; these pods still count as blocked after the request.
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
    """Return the blocked pods; each pod in `expected_by_uid` is blocked for the reason given there."""
    return [expected_by_uid.get(item.pod["uid"], item) for item in blocked]
