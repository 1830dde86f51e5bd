"""Reads the PodDisruptionBudgets (PDBs) of blocked pods: which allow an eviction now, and which a scale-up would open.

The status of a maintenance contains the causes that the functions found last, and is outdated if no function runs. It
does not contain the pods' workloads, so the functions need no request for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from shlex import quote
from typing import NamedTuple

from kube.budgets import (
    Budget,
    build_namespace_budgets_path,
    count_allowed_disruptions,
    count_missing_replicas,
    has_current_status,
)
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError
from kube.maintenance.blocked_groups import BlockedGroup, Remedy, group_blocked_pods
from kube.maintenance.objects import Maintenance, get_status, is_deleting
from kube.paths import Object, encode_path_segment
from kube.pods import get_controller
from kube.text_limits import format_count

MAX_BUDGETS = 10
"""Maximum number of PDBs that one call reads, because a node may have many blocked pods."""
SCALABLE_KINDS = {"Deployment": "deployments", "ReplicaSet": "replicasets", "StatefulSet": "statefulsets"}
"""Map from the kind to the plural name of the workloads in the API group `apps` that have replicas."""
MAX_OWNERS = 2
"""Maximum number of a pod's owners to read: a ReplicaSet and its Deployment."""


class BudgetHints(NamedTuple):
    """What the PDBs of blocked pods suggest, by `namespace/name` of the PDB.

    Attributes:
        allowing: A hint for each PDB that allows a disruption now.
        scale_commands: For each other PDB that a scale-up would open, the command that scales up the first blocked
            pod's workload.
    """

    allowing: dict[str, Remedy]
    scale_commands: dict[str, str]


async def read_budget_hints(api: Api, maintenances: Iterable[Maintenance], namespace: str) -> BudgetHints:
    """Return the hints about the PDBs that block pods.

    In: the namespace of the functions, which the hint's command contains. The function reads at most `MAX_BUDGETS`
    PDBs, and omits those that the user may not read. It also omits the commands for workloads that the user may not
    read.
    """
    groups = list_budget_groups(maintenances)
    budgets = await _read_budgets(api, groups)
    allowed = {group: count_allowed_disruptions(budget) for group, budget in budgets.items()}
    return BudgetHints(
        {group.budget_key: _build_hint(group.budget, count, namespace) for group, count in allowed.items() if count},
        await _build_scale_commands(api, budgets),
    )


def list_budget_groups(maintenances: Iterable[Maintenance]) -> list[BlockedGroup]:
    """Return a group of blocked pods for each PDB that blocks them, at most `MAX_BUDGETS`."""
    return select_budget_groups(
        group
        for maintenance in maintenances
        if not is_deleting(maintenance)
        for group in group_blocked_pods(get_status(maintenance).get("blockedPods") or [])
    )


def select_budget_groups(groups: Iterable[BlockedGroup]) -> list[BlockedGroup]:
    """Return the groups that a PDB blocks, one for each PDB, at most `MAX_BUDGETS`."""
    blocking = {group.budget_key: group for group in groups if group.budget and group.reason == "DisruptionBudget"}
    return list(blocking.values())[:MAX_BUDGETS]


async def read_scale_commands(api: Api, groups: Collection[BlockedGroup]) -> dict[str, str]:
    """Return the commands of `BudgetHints.scale_commands` for these groups from `select_budget_groups`."""
    return await _build_scale_commands(api, await _read_budgets(api, groups))


async def _read_budgets(api: Api, groups: Collection[BlockedGroup]) -> dict[BlockedGroup, Budget]:
    """Return each group's PDB, except those that cannot be read."""
    budgets: list[Budget | None] = await gather_all(*(_read_budget(api, group) for group in groups))
    return {group: budget for group, budget in zip(groups, budgets, strict=True) if budget}


async def _build_scale_commands(api: Api, budgets: Mapping[BlockedGroup, Budget]) -> dict[str, str]:
    commands = await gather_all(*(_build_scale_command(api, group, budget) for group, budget in budgets.items()))
    return {group.budget_key: command for group, command in zip(budgets, commands, strict=True) if command}


async def _read_budget(api: Api, group: BlockedGroup) -> Budget | None:
    """Return the PDB, or None if it cannot be read: the hint is optional, and the PDB may no longer exist."""
    path = f"{build_namespace_budgets_path(group.namespace)}/{encode_path_segment(group.budget)}"
    try:
        budget: Budget = await api.get(path)
    except ApiError:
        return None
    return budget


def _build_hint(budget: str, allowed: int, namespace: str) -> Remedy:
    text = f"budget {budget} allows {format_count(allowed, 'disruption')} now"
    return Remedy(
        f"{text}: the functions have not evicted the pod yet; see whether they run",
        f"kubectl get pods -n {quote(namespace)}",
    )


async def _build_scale_command(api: Api, group: BlockedGroup, budget: Budget) -> str:
    """Return the command that scales up the first pod's workload until the PDB allows an eviction.

    The command is "" if a scale-up does not help, or if the workload is unknown.
    """
    needs_pods = has_current_status(budget) and not count_allowed_disruptions(budget)
    missing = count_missing_replicas(budget) if needs_pods else 0
    workload = await _read_workload(api, group.namespace, group.pods[0].split("/")[1]) if missing else None
    if not workload:
        return ""
    target = quote(f"{workload['kind'].lower()}/{workload['metadata']['name']}")
    replicas = workload["spec"].get("replicas", 1) + missing
    return f"kubectl scale {target} -n {quote(group.namespace)} --replicas={replicas}"


async def _read_workload(api: Api, namespace: str, pod: str) -> Object | None:
    """Return the workload that determines the number of pods, such as the Deployment that owns a pod's ReplicaSet.

    The result is None if the workload cannot be read or is of another kind: its own controller would revert a change
    of a ReplicaSet.
    """
    parent = f"namespaces/{encode_path_segment(namespace)}"
    try:
        owned: Object = await api.get(f"/api/v1/{parent}/pods/{encode_path_segment(pod)}")
        for _ in range(MAX_OWNERS):
            owner = get_controller(owned)
            if not owner or not owner["apiVersion"].startswith("apps/") or owner["kind"] not in SCALABLE_KINDS:
                return None
            plural, name = SCALABLE_KINDS[owner["kind"]], encode_path_segment(owner["name"])
            owned = await api.get(f"/apis/apps/v1/{parent}/{plural}/{name}")
            if not get_controller(owned):
                return owned
    except ApiError:
        pass
    return None
