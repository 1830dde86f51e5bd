"""Reads which PodDisruptionBudgets (PDBs) of blocked pods allow an eviction now.

The status of a maintenance contains the causes that the functions found last, and is outdated if no function runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from kube.budgets import Budget, build_namespace_budgets_path, count_allowed_disruptions
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError
from kube.maintenance.blocked_groups import BlockedGroup, Remedy, group_blocked_pods
from kube.maintenance.objects import Maintenance, get_status, is_deleting
from kube.paths import encode_path_segment
from kube.text_limits import format_count

MAX_BUDGETS = 10
"""Maximum number of PDBs that one call reads, because a node may have many blocked pods."""


async def read_budget_hints(api: Api, maintenances: Iterable[Maintenance], namespace: str) -> dict[str, Remedy]:
    """Return a hint for each PDB that blocks pods but allows a disruption now, by the PDB's `namespace/name`.

    In: the namespace of the functions, which the hint's command contains. The function reads at most `MAX_BUDGETS`
    PDBs, and omits those that the user may not read.
    """
    groups = (
        group
        for maintenance in maintenances
        if not is_deleting(maintenance)
        for group in group_blocked_pods(get_status(maintenance).get("blockedPods") or [])
    )
    blocking = {group.budget_key: group for group in groups if group.budget and group.reason == "DisruptionBudget"}
    keys = list(blocking)[:MAX_BUDGETS]
    budgets: list[Budget | None] = await gather_all(*(_read_budget(api, blocking[key]) for key in keys))
    allowed = {key: count_allowed_disruptions(budget) for key, budget in zip(keys, budgets, strict=True) if budget}
    return {key: _build_hint(blocking[key].budget, count, namespace) for key, count in allowed.items() if count}


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
