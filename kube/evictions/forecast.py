"""Forecasts the evictions of one or more nodes: which pods leave, and which stay blocked. Pure functions.

`plan_evictions` decides which pods may be evicted now. The forecast continues from there: a PodDisruptionBudget (PDB)
that admits some of its pods admits further ones when replacements are ready. These pods are therefore evicted later,
and are not blocked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from kube.budgets import (
    BlockedPod,
    Budget,
    covers,
    format_budget_key,
    may_evict_unready_pod,
    requires_all_pods,
)
from kube.evictions.planner import BudgetQueue, plan_evictions
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions, Pod, format_key, get_uid, is_finished
from kube.text_limits import format_count

ADMITS, IN_TURN, RUNS_OUT, BLOCKS, NEVER = "admits", "inTurn", "runsOut", "blocks", "never"
"""Effects of a PodDisruptionBudget on the pods to evict.

- `ADMITS`: The PDB admits the eviction of all these pods now.
- `IN_TURN`: The PDB admits some of these pods now, and the others when replacements are ready.
- `RUNS_OUT`: The PDB admits some of these pods now. It then admits no others, because pods without a controller use up
    its allowed disruptions.
- `BLOCKS`: The PDB admits no pod now. It may admit some when more pods are ready.
- `NEVER`: The PDB admits no pod, because it requires all pods that it covers.
"""
BLOCKING_EFFECTS = (RUNS_OUT, BLOCKS, NEVER)
DEFAULT_GRACE_SECONDS = 30
"""Default of `spec.terminationGracePeriodSeconds`, in seconds."""


class BudgetForecast(NamedTuple):
    """The effect of one PodDisruptionBudget (PDB) on the pods to evict.

    Attributes:
        pods: The pods to evict that no other PDB covers.
        now: The number of these pods that the PDB admits now.
        rounds: The maximum number of successive groups of evictions, 0 if some pods stay blocked.
    """

    budget: Budget
    pods: list[Pod]
    now: int
    effect: str
    rounds: int = 0

    @property
    def key(self) -> str:
        """Return `namespace/name` of the PodDisruptionBudget."""
        return format_budget_key(self.budget)


class EvictionForecast(NamedTuple):
    """The forecast for all pods to evict that are not terminating yet.

    Attributes:
        now: Pods that are evicted in the first pass.
        later: Pods whose PodDisruptionBudget (PDB) admits them when replacements are ready.
        blocked: Pods that stay blocked until their PDB, their workload or the cluster changes.
        budgets: The forecasts of the PDBs that are the only PDB of a pod, sorted by namespace and name.
    """

    now: list[Pod]
    later: list[Pod]
    blocked: list[BlockedPod]
    budgets: list[BudgetForecast]


class DurationEstimate(NamedTuple):
    """The maximum time until the evicted pods have terminated, and the pod or PDB that takes longest."""

    seconds: int
    reason: str


def forecast_evictions(
    leaving_pods: Iterable[Pod],
    budgets: Iterable[Budget],
    options: DrainOptions = DEFAULT_DRAIN_OPTIONS,
    lost_uids: Collection[str] = (),
) -> EvictionForecast:
    """Forecast which of these pods leave; the pods may come from several nodes.

    `lost_uids` are the uids of pods without a controller, which get no replacement.
    """
    pods, all_budgets = list(leaving_pods), list(budgets)
    plan = plan_evictions(pods, all_budgets, options)
    queues = {queue.key: queue for queue in plan.queues}
    forecasts = [
        _forecast_budget(budget, covered, queues.get(format_budget_key(budget)), lost_uids)
        for budget, covered in _group_by_only_budget(pods, [] if options.disable_eviction else all_budgets)
    ]
    continuing = {get_uid(pod) for forecast in forecasts if forecast.effect == IN_TURN for pod in forecast.pods}
    later_uids = {blocked.pod["uid"] for blocked in plan.blocked} & continuing
    return EvictionForecast(
        now=sorted(plan.admitted, key=format_key),
        later=sorted((pod for pod in pods if get_uid(pod) in later_uids), key=format_key),
        blocked=sorted(
            (blocked for blocked in plan.blocked if blocked.pod["uid"] not in later_uids), key=lambda item: item.key
        ),
        budgets=sorted(forecasts, key=lambda forecast: forecast.key),
    )


def _group_by_only_budget(pods: Iterable[Pod], budgets: Iterable[Budget]) -> list[tuple[Budget, list[Pod]]]:
    """Return each PodDisruptionBudget with the pods that no other PDB covers; omit PDBs without such pods."""
    budgets_by_key = {format_budget_key(budget): budget for budget in budgets}
    pods_by_budget: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        covering = [key for key, budget in budgets_by_key.items() if covers(budget, pod)]
        if len(covering) == 1:
            pods_by_budget[covering[0]].append(pod)
    return [(budgets_by_key[key], covered) for key, covered in pods_by_budget.items()]


def _forecast_budget(
    budget: Budget, pods: list[Pod], queue: BudgetQueue | None, lost_uids: Collection[str]
) -> BudgetForecast:
    """Forecast a PodDisruptionBudget's effect on its pods; `queue` is None if the PDB admits none of them now.

    A pod without a replacement uses up one allowed disruption for good. The drain evicts a PDB's pods in random order,
    so such pods may be the first. The PDB therefore runs out unless it allows more disruptions than there are such
    pods.
    """
    admitted = queue.admitted if queue else []
    if len(admitted) == len(pods):
        return BudgetForecast(budget, pods, len(admitted), ADMITS, 1)
    slots = len([pod for pod in admitted if not may_evict_unready_pod(budget, pod)])
    if not slots:
        return BudgetForecast(budget, pods, len(admitted), NEVER if requires_all_pods(budget) else BLOCKS)
    counted = [pod for pod in pods if not may_evict_unready_pod(budget, pod)]
    lost = sum(get_uid(pod) in lost_uids for pod in counted)
    if lost >= slots:
        return BudgetForecast(budget, pods, len(admitted), RUNS_OUT)
    rounds = 1 + -(-(len(counted) - slots) // (slots - lost))  # assumes that pods without a replacement leave first
    return BudgetForecast(budget, pods, len(admitted), IN_TURN, rounds)


def get_grace_seconds(pod: Pod, options: DrainOptions = DEFAULT_DRAIN_OPTIONS) -> int:
    """Return the pod's termination grace period in seconds; 0 for a finished pod."""
    if is_finished(pod):
        return 0
    if options.grace_period_seconds is not None:
        return options.grace_period_seconds
    return int(pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))


def estimate_duration(forecast: EvictionForecast, options: DrainOptions = DEFAULT_DRAIN_OPTIONS) -> DurationEstimate:
    """Estimate from the grace periods when the last pod that is not blocked will have terminated.

    Pods are evicted concurrently, but a PodDisruptionBudget may admit its pods in several successive groups. The
    estimate does not include the time until replacements are ready.
    """
    single = [DurationEstimate(get_grace_seconds(pod, options), f"pod {format_key(pod)}") for pod in forecast.now]
    in_turn = [
        DurationEstimate(
            item.rounds * max(get_grace_seconds(pod, options) for pod in item.pods),
            f"budget {item.key}, which admits {format_count(len(item.pods), 'pod')} "
            f"in {format_count(item.rounds, 'round')}",
        )
        for item in forecast.budgets
        if item.rounds > 1
    ]
    return max((*in_turn, *single), key=lambda estimate: estimate.seconds, default=DurationEstimate(0, ""))
