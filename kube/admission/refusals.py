"""Builds the messages with which the admission webhook denies a NodeMaintenance (NMO-19, NMO-22). Pure functions.

Each message has the wording of the operator that this project replaces, followed by the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable

from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import Maintenance, claims_node, is_deleting


def build_unknown_node_message(node_name: str) -> str:
    """Return the message for a node that does not exist (NMO-19)."""
    return f"invalid nodeName, no node with name {node_name} found; `kubectl get nodes` lists the node names"


def find_conflict(maintenance: Maintenance, others: Iterable[Maintenance]) -> Maintenance | None:
    """Return another maintenance that holds the node or waits for it, None if there is none (NMO-22, X-7).

    `others` must be maintenances of the same node. A maintenance with the same name and API group does not count,
    because the API server itself reports that it already exists.
    """
    return next((other for other in others if claims_node(other) and not _is_same_object(other, maintenance)), None)


def build_conflict_message(node_name: str, other: Maintenance) -> str:
    """Return the message for a node that already has a maintenance, in any of the API groups."""
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
