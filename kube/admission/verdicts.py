"""Builds the denials of a NodeMaintenance, and the warnings about the consequences of its drain. Pure functions.

A denial has the wording of the operator that this project replaces, followed by the remedy (NMO-19, NMO-22). Warnings
do not deny the request. They are computed from the node's own pods and the PodDisruptionBudgets (PDBs) of these pods.
The webhook makes no check that needs every pod in the cluster, such as whether other nodes have enough capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from kube.budgets import BlockedPod, Budget, format_budget_key, never_allows_disruption, requires_all_pods
from kube.evictions.planner import plan_evictions
from kube.maintenance.drain_flags import classify_for_drain, parse_drain_options, select_evictable_pods
from kube.maintenance.escalation import ACTION_EFFECTS, parse_drain_schedule
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import Maintenance, is_deleting, owns_or_awaits_node
from kube.pods import Pod, format_key, get_controller, get_uid, is_terminating, tolerates_everything
from kube.text_limits import format_count, format_first_names

MAX_NAMED_PODS = 3
"""Maximum number of pods that one warning names.

If the warnings are long in total, the API server truncates each after 256 characters.
"""


def build_unknown_node_message(node_name: str) -> str:
    """Return the denial of a maintenance of a node that does not exist (NMO-19)."""
    return f"invalid nodeName, no node with name {node_name} found; `kubectl get nodes` lists the node names"


def find_schedule_error(maintenance: Maintenance) -> str:
    """Return the error message for an invalid deadline or escalation, "" if both are valid."""
    return parse_drain_schedule(maintenance).error


def find_conflict(maintenance: Maintenance, others: Iterable[Maintenance]) -> Maintenance | None:
    """Return another maintenance that holds the node or waits for it, None if there is none (NMO-22, X-7).

    `others` must be maintenances of the same node. A maintenance with the same name and API group is ignored, because
    the API server itself reports that it already exists.
    """
    return next(
        (other for other in others if owns_or_awaits_node(other) and not _is_same_object(other, maintenance)), None
    )


def build_conflict_message(node_name: str, other: Maintenance) -> str:
    """Return the denial of a maintenance of a node that already has one, in any of the API groups."""
    name, group = other["metadata"]["name"], GROUPS[other["apiVersion"]].api_version.partition("/")[0]
    remedy = (
        "the existing NodeMaintenance is being deleted, so try again in a moment"
        if is_deleting(other)
        else f"use the existing NodeMaintenance, or delete it first: `kubectl delete nodemaintenances.{group} {name}`"
    )
    return f"invalid nodeName, a NodeMaintenance for node {node_name} already exists: {name} ({group}); {remedy}"


def _is_same_object(maintenance: Maintenance, other: Maintenance) -> bool:
    names = (item["metadata"].get("name") for item in (maintenance, other))
    return maintenance["apiVersion"] == other["apiVersion"] and len(set(names)) == 1


def build_warnings(
    maintenance: Maintenance, pods: Iterable[Pod], budgets: Iterable[Budget], now: datetime
) -> list[str]:
    """Return warnings about what the drain would lose and what would block it, with the remedies.

    Pods that stay on the node or are already terminating cause no warnings.
    """
    options, budgets = parse_drain_options(maintenance), list(budgets)
    classification = classify_for_drain(pods, options, now)
    leaving = [pod for pod in select_evictable_pods(classification, options) if not is_terminating(pod)]
    plan = plan_evictions(leaving, budgets, options)
    returning = [pod for pod in leaving if get_controller(pod) and tolerates_everything(pod)]
    return [
        *_generate_pod_warning(
            _select_pod_keys(classification.bare, leaving), "no controller will recreate {} after the eviction: {}"
        ),
        *_generate_pod_warning(
            _select_pod_keys(classification.with_local_storage, leaving), "emptyDir data of {} will be lost: {}"
        ),
        *_build_budget_warnings(plan.blocked, budgets, admitting_budgets=[queue.key for queue in plan.queues]),
        *_generate_pod_warning(
            list(map(format_key, returning)),
            "a controller may recreate {} on this node, due to a toleration of every taint; narrow the tolerations: {}",
        ),
        *_build_escalation_warnings(maintenance),
    ]


def _build_escalation_warnings(maintenance: Maintenance) -> list[str]:
    """Return a warning for each escalation step, because such a step deletes pods regardless of their PDBs."""
    return [
        f"if the drain takes {step.after}, {ACTION_EFFECTS[step.action]} (spec.drain.escalation)"
        for step in parse_drain_schedule(maintenance).steps
    ]


def build_sole_control_plane_warning(node_name: str) -> str:
    """Return the warning that no other node runs the control plane."""
    return (
        f"node {node_name} is the only control-plane node: while it is down, the API server is unavailable, "
        "and no controller manages the workloads on other nodes"
    )


def _build_budget_warnings(
    blocked: Iterable[BlockedPod], budgets: Iterable[Budget], *, admitting_budgets: Collection[str]
) -> list[str]:
    """Return a warning for each PDB that blocks all of its pods on the node, and one for pods under several PDBs.

    The text differs for PDBs that never allow an eviction.
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
        for line in _generate_pod_warning(pods, _build_budget_warning_template(by_key[name]))
    ]
    template = "{} cannot be evicted under several disruption budgets; delete or narrow one of the budgets: {}"
    return [*lines, *_generate_pod_warning(under_several, template)]


def _build_budget_warning_template(budget: Budget) -> str:
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


def _generate_pod_warning(pod_keys: Collection[str], template: str) -> Iterator[str]:
    """Yield one warning with the number of pods and the first pods' names; yield nothing if there are no pods."""
    if pod_keys:
        yield template.format(format_count(len(pod_keys), "pod"), format_first_names(sorted(pod_keys), MAX_NAMED_PODS))


def _select_pod_keys(pods: Iterable[Pod], leaving_pods: Iterable[Pod]) -> list[str]:
    uids = {get_uid(pod) for pod in leaving_pods}
    return [format_key(pod) for pod in pods if get_uid(pod) in uids]
