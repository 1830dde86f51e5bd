"""Messages with which the admission webhook denies a NodeMaintenance (NMO-19, NMO-22). Pure functions.

Each message has the wording of the operator that this project replaces, followed by the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable

from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import Maintenance, claims_node, is_deleting


def unknown_node(node: str) -> str:
    """Return the message for a node that does not exist (NMO-19)."""
    return f"invalid nodeName, no node with name {node} found; `kubectl get nodes` lists their names"


def in_the_way(wanted: Maintenance, others: Iterable[Maintenance]) -> Maintenance | None:
    """Return another maintenance that holds the node or waits for it, None if there is none (NMO-22, X-7).

    `others` must be maintenances of the same node. One with the same name and API group does not count, because the API
    server itself reports that it already exists.
    """
    return next((other for other in others if claims_node(other) and not _is_same(other, wanted)), None)


def second_maintenance(node: str, other: Maintenance) -> str:
    """Return the message for a node that already has a maintenance, in any of the API groups."""
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
