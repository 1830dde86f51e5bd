"""Decides which pods to evict now, as their PodDisruptionBudgets allow. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from kube.budgets import (
    WAITS_FOR_KUBEVIRT,
    BlockedPod,
    Budget,
    build_blocked_by_budget,
    build_blocked_by_several_budgets,
    covers,
    format_budget_key,
    split_admitted_pods,
)
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions, Pod, get_uid, is_ready, is_terminating


@dataclass(frozen=True)
class BudgetQueue:
    """The pods under one PodDisruptionBudget (PDB), to evict one after another.

    Concurrent evictions under one PDB would conflict in the API server.

    Attributes:
        budget: The PDB that covers the pods.
        admitted: Pods to request the eviction of: those that the PDB allows to be evicted now, and those in
            `EvictionPlan.expected_refusals`.
    """

    budget: Budget
    admitted: list[Pod]

    @property
    def key(self) -> str:
        """Return `namespace/name` of the PodDisruptionBudget."""
        return format_budget_key(self.budget)


@dataclass(frozen=True)
class EvictionPlan:
    """The evictions that one pass may send.

    Attributes:
        unbudgeted: Pods without a PodDisruptionBudget (PDB); they are evicted concurrently.
        queues: The PDBs that admit pods, each with its pods.
        blocked: Pods that are not evicted now, with the reason.
        expected_refusals: Pods in `queues`, by uid, whose eviction will be refused but requests an evacuation. virt-api
            denies the eviction of a virt-launcher pod, but makes KubeVirt migrate the VMI. Without virt-api, the pod's
            PDB refuses the eviction, which then has no effect. Either way, the pod stays blocked for the given reason.
        options: The grace period, and whether pods are deleted instead of evicted.
        deletions: Pods that an escalation step deletes concurrently, with `deletion_options`.
    """

    unbudgeted: list[Pod] = field(default_factory=list)
    queues: list[BudgetQueue] = field(default_factory=list)
    blocked: list[BlockedPod] = field(default_factory=list)
    expected_refusals: dict[str, BlockedPod] = field(default_factory=dict)
    options: DrainOptions = DEFAULT_DRAIN_OPTIONS
    deletions: list[Pod] = field(default_factory=list)
    deletion_options: DrainOptions = DEFAULT_DRAIN_OPTIONS

    @property
    def admitted(self) -> list[Pod]:
        """Return all pods that the plan evicts or deletes."""
        return [*self.unbudgeted, *(pod for queue in self.queues for pod in queue.admitted), *self.deletions]

    def select(self, predicate: Callable[[Pod], bool]) -> EvictionPlan:
        """Return the plan, limited to evictions and deletions of the pods that `predicate` accepts."""
        queues = [replace(queue, admitted=list(filter(predicate, queue.admitted))) for queue in self.queues]
        return replace(
            self,
            unbudgeted=list(filter(predicate, self.unbudgeted)),
            queues=[queue for queue in queues if queue.admitted],
            deletions=list(filter(predicate, self.deletions)),
        )

    def with_deletions(self, pods: Collection[Pod], options: DrainOptions) -> EvictionPlan:
        """Return the plan changed to delete `pods` instead of evicting them or reporting them as blocked."""
        uids = {get_uid(pod) for pod in pods}
        return replace(
            self.select(lambda pod: get_uid(pod) not in uids),
            blocked=[item for item in self.blocked if item.pod["uid"] not in uids],
            deletions=list(pods),
            deletion_options=options,
        )


def plan_evictions(
    leaving_pods: Iterable[Pod],
    budgets: Iterable[Budget],
    options: DrainOptions = DEFAULT_DRAIN_OPTIONS,
    is_evacuation_due: Callable[[BlockedPod], bool] = lambda _blocked_pod: False,
) -> EvictionPlan:
    """Decide which pods may be evicted now.

    Terminating pods are leaving already and do not appear in the plan. Deletions (`disable_eviction`) ignore
    PodDisruptionBudgets. For a pod that waits for KubeVirt, `is_evacuation_due` decides whether to request its VMI's
    evacuation now.
    """
    budgets_by_key = {} if options.disable_eviction else {format_budget_key(budget): budget for budget in budgets}
    plan = EvictionPlan(options=options)
    pods_by_budget: dict[str, list[Pod]] = defaultdict(list)
    waiting: list[tuple[Pod, BlockedPod]] = []
    for pod in leaving_pods:
        if is_terminating(pod):
            continue
        covering = [key for key, budget in budgets_by_key.items() if covers(budget, pod)]
        if not covering:
            plan.unbudgeted.append(pod)
        elif len(covering) > 1:
            waiting.append((pod, build_blocked_by_several_budgets(pod, [budgets_by_key[key] for key in covering])))
        else:
            pods_by_budget[covering[0]].append(pod)
    for key, pods in pods_by_budget.items():
        admitted, excess = split_admitted_pods(budgets_by_key[key], pods)
        if admitted:
            plan.queues.append(BudgetQueue(budgets_by_key[key], admitted))
        going_ready = sum(map(is_ready, admitted))
        waiting.extend((pod, build_blocked_by_budget(budgets_by_key[key], pod, going_ready)) for pod in excess)
    for pod, blocked_pod in waiting:
        if blocked_pod.reason == WAITS_FOR_KUBEVIRT and is_evacuation_due(blocked_pod):
            plan.queues.append(BudgetQueue(budgets_by_key[blocked_pod.budget_key], [pod]))
            plan.expected_refusals[blocked_pod.pod["uid"]] = blocked_pod
        else:
            plan.blocked.append(blocked_pod)
    return plan
