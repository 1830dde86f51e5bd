"""Why a NodeMaintenance is not created: the operator's words, and behind them the remedy (NMO-19, NMO-22). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import Maintenance, claims_node, is_deleting


def unknown_node(node: str) -> str:
    """No node has that name (NMO-19)."""
    return f"invalid nodeName, no node with name {node} found; `kubectl get nodes` lists their names"


def in_the_way(wanted: Maintenance, others: Iterable[Maintenance]) -> Maintenance | None:
    """The other maintenance that has its node, or waits for it; None for none (NMO-22, X-7).

    One of the very name is none: the server itself answers that it is there already.
    """
    return next((other for other in others if claims_node(other) and not _is_same(other, wanted)), None)


def second_maintenance(node: str, other: Maintenance) -> str:
    """The node has one already, in any of the groups."""
    name, group = other["metadata"]["name"], GROUPS[other["apiVersion"]].api_version.partition("/")[0]
    remedy = (
        "it is being deleted, so try again in a moment"
        if is_deleting(other)
        else f"use that one, or delete it first: `kubectl delete nodemaintenances.{group} {name}`"
    )
    return f"invalid nodeName, a NodeMaintenance for node {node} already exists: {name} ({group}); {remedy}"


def _is_same(one: Maintenance, other: Maintenance) -> bool:
    names = (item["metadata"].get("name") for item in (one, other))
    return one["apiVersion"] == other["apiVersion"] and len(set(names)) == 1
