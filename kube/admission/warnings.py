"""Builds warnings about the consequences of a drain, none of which is a reason to deny the drain. Pure functions.

The warnings are computed from the node's own pods and their budgets. The webhook makes no checks that need every pod in
the cluster, such as whether other nodes have enough capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from kube.budgets import BlockedPod, Budget, format_budget_key, never_allows_disruption, requires_all_pods
from kube.evictions.planner import plan_evictions
from kube.maintenance.drain_flags import classify_for_drain, parse_drain_options, select_evictable_pods
from kube.maintenance.objects import Maintenance
from kube.pods import Pod, format_key, get_controller, get_uid, is_terminating, tolerates_everything
from kube.text_limits import format_count

MAX_NAMED_PODS = 3
"""Maximum number of pods that one warning names.

The API server cuts warnings after 256 characters if their total is large.
"""


def build_warnings(
    maintenance: Maintenance, pods: Iterable[Pod], budgets: Iterable[Budget], now: datetime
) -> list[str]:
    """Return warnings about what the drain would lose and what would block it, with remedies.

    Pods that stay on the node or are already terminating cause no warnings.
    """
    options = parse_drain_options(maintenance)
    classification = classify_for_drain(pods, options, now)
    leaving = [pod for pod in select_evictable_pods(classification, options) if not is_terminating(pod)]
    budget_list = list(budgets)
    result = [
        *_format_pod_warning(
            _select_pod_keys(classification.bare, leaving), "no controller will recreate {} after the eviction: {}"
        ),
        *_format_pod_warning(
            _select_pod_keys(classification.with_local_storage, leaving), "emptyDir data of {} will be lost: {}"
        ),
    ]
    plan = plan_evictions(leaving, budget_list, options)
    admitting_budgets = [queue.key for queue in plan.queues]
    result += _build_budget_warnings(plan.blocked, budget_list, admitting_budgets=admitting_budgets)
    returning = [pod for pod in leaving if get_controller(pod) and tolerates_everything(pod)]
    template = (
        "a controller may recreate {} on this node, due to a toleration of every taint; narrow the tolerations: {}"
    )
    return [*result, *_format_pod_warning([format_key(pod) for pod in returning], template)]


def build_sole_control_plane_warning(node_name: str) -> str:
    """Return the warning that no other node runs the API server and etcd."""
    return (
        f"node {node_name} is the only control-plane node: while it is down, the API server is unavailable, "
        "and no controller manages the workloads on other nodes"
    )


def _build_budget_warnings(
    blocked: Iterable[BlockedPod], budgets: Iterable[Budget], *, admitting_budgets: Collection[str]
) -> list[str]:
    """Return a warning for each budget that admits no eviction on the node, and one for pods under several budgets.

    The text differs for budgets that never admit an eviction.
    """
    by_key = {format_budget_key(budget): budget for budget in budgets}
    waiting: dict[str, list[str]] = defaultdict(list)
    under_several: list[str] = []
    for item in blocked:
        if item.reason == "MultipleBudgets":
            under_several.append(item.key)
        else:
            waiting[item.budget_key].append(item.key)
    blocking = {name: pods for name, pods in waiting.items() if name not in admitting_budgets}
    lines = [
        line
        for name, pods in sorted(blocking.items())
        for line in _format_pod_warning(pods, _build_budget_template(by_key[name]))
    ]
    template = "{} cannot be evicted under several disruption budgets; delete or narrow one of the budgets: {}"
    return [*lines, *_format_pod_warning(under_several, template)]


def _build_budget_template(budget: Budget) -> str:
    name, status = format_budget_key(budget), budget.get("status") or {}
    if requires_all_pods(budget):
        remedy = (
            "change the budget, because more replicas do not help"
            if never_allows_disruption(budget)
            else "add replicas or change the budget"
        )
        demand = "requires all of its pods to be healthy, so it allows no eviction"
        return f"budget {name} {demand}: {remedy}; it blocks {{}}: {{}}"
    healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    demand = f"needs {needed} healthy pods and has {healthy}, so it allows no eviction now"
    return f"budget {name} {demand}; it blocks {{}}: {{}}"


def _format_pod_warning(pod_keys: Collection[str], template: str) -> Iterator[str]:
    """Yield one warning with the number of pods and the first names; yield nothing if there are no pods."""
    if pod_keys:
        names = sorted(pod_keys)
        more = f" and {len(names) - MAX_NAMED_PODS} more" if len(names) > MAX_NAMED_PODS else ""
        yield template.format(format_count(len(names), "pod"), ", ".join(names[:MAX_NAMED_PODS]) + more)


def _select_pod_keys(pods: Iterable[Pod], leaving_pods: Iterable[Pod]) -> list[str]:
    uids = {get_uid(pod) for pod in leaving_pods}
    return [format_key(pod) for pod in pods if get_uid(pod) in uids]
