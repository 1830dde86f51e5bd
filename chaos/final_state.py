"""Checks a run's final state: each node must match its NodeMaintenances, and each Lease must have a holder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kube.maintenance import leases, objects
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import Maintenance
from kube.nodes import (
    EXCLUDE_LABEL,
    EXCLUDED_BEFORE_LABEL,
    MAINTENANCE_LABEL,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    Node,
    get_maintenance_uid,
    is_cordoned,
    is_cordoned_and_tainted,
)
from kube.paths import Object
from kube.pods import format_key, is_never_evicted


def list_problems(
    nodes: Iterable[Node], maintenances: Iterable[Maintenance], lease_objects: Iterable[Object], pods: Iterable[Object]
) -> list[str]:
    """Return one line for each problem in this state.

    Args:
        nodes: All nodes.
        maintenances: The NodeMaintenances of all API groups.
        lease_objects: The Leases of all nodes.
        pods: All pods.
    """
    all_nodes, all_maintenances, all_pods = list(nodes), list(maintenances), list(pods)
    leases_by_node = {leases.parse_node_name(lease): lease for lease in lease_objects}
    node_names = [node["metadata"]["name"] for node in all_nodes]
    problems = [
        f"NodeMaintenance {maintenance['metadata']['name']} is still being deleted"
        for maintenance in all_maintenances
        if objects.is_deleting(maintenance)
    ]
    problems += [
        f"node {name} does not exist, but still has a Lease"
        for name in leases_by_node
        if name and name not in node_names
    ]
    for node in all_nodes:
        name = node["metadata"]["name"]
        node_maintenances = [
            maintenance
            for maintenance in all_maintenances
            if objects.get_node_name(maintenance) == name and not objects.is_deleting(maintenance)
        ]
        problems += (
            _check_node_in_maintenance(node, node_maintenances, leases_by_node.get(name), all_pods)
            if node_maintenances
            else _check_node_in_service(node, leases_by_node.get(name))
        )
    return problems


def _check_node_in_service(node: Node, lease: Object | None) -> Iterator[str]:
    """Yield the problems of a node that has no NodeMaintenance."""
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    taints = {(taint["key"], taint.get("effect")) for taint in node["spec"].get("taints") or []}
    if is_cordoned(node):
        yield f"node {name} is cordoned without a NodeMaintenance"
    for taint in sorted(taint for taint in (*DRAIN_TAINTS, UNSCHEDULABLE_TAINT) if (taint, NO_SCHEDULE) in taints):
        yield f"node {name} has the taint {taint} without a NodeMaintenance"
    for label in (MAINTENANCE_LABEL, EXCLUDED_BEFORE_LABEL, EXCLUDE_LABEL):
        if label in labels:
            yield f"node {name} has the label {label} without a NodeMaintenance"
    if lease is not None:
        yield f"node {name} has a Lease without a NodeMaintenance"


def _check_node_in_maintenance(
    node: Node, maintenances: list[Maintenance], lease: Object | None, pods: list[Object]
) -> Iterator[str]:
    """Yield the problems of a node with NodeMaintenances: one must hold the node's Lease and have drained the node."""
    name = node["metadata"]["name"]
    holders = [
        maintenance for maintenance in maintenances if lease is not None and leases.is_holder(lease, maintenance)
    ]
    if not holders:
        names = ", ".join(maintenance["metadata"]["name"] for maintenance in maintenances)
        yield f"node {name} has no Lease for any of {names}"
        return
    (holder,) = holders
    holder_name = holder["metadata"]["name"]
    if not is_cordoned_and_tainted(node, objects.get_group(holder).drain_taint):
        yield f"node {name} is not cordoned and tainted for NodeMaintenance {holder_name}"
    if get_maintenance_uid(node) is None or (node["metadata"].get("labels") or {}).get(EXCLUDE_LABEL) != "true":
        yield f"node {name} lacks the labels for NodeMaintenance {holder_name}"
    if not objects.has_begun(holder):
        yield f"NodeMaintenance {holder_name} holds the Lease of node {name}, but has no finalizer or counts"
    if objects.get_phase(holder) != objects.SUCCEEDED:
        phase, error = objects.get_phase(holder) or "without a phase", objects.get_last_error(holder)
        yield f"NodeMaintenance {holder_name} on node {name} is {phase}: {error}"
    remaining = [format_key(pod) for pod in pods if pod["spec"].get("nodeName") == name and not is_never_evicted(pod)]
    if remaining:
        yield f"node {name} still has pods under NodeMaintenance {holder_name}: {', '.join(remaining)}"
    for other in maintenances:
        if other is not holder and objects.get_phase(other) == objects.SUCCEEDED:
            other_name = other["metadata"]["name"]
            yield f"NodeMaintenance {other_name} is Succeeded, but {holder_name} holds the Lease of node {name}"
