"""Taint the node with the group's drain taint and the unschedulable taint, others untouched (NMO-4, KNM-4, DRN-13).

In: `node.cordoned`. Out: `node.tainted`.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.subject import log_about, read_active, reference_of
from functions.patching import patch_node
from kube.door.cluster import Cluster
from kube.maintenance.objects import group
from kube.nodes import missing_taints, taint_patch

CONSUMES = (events.NODE_CORDONED,)
EMITS = (events.NODE_TAINTED,)


def taint(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Add the maintenance taints that are missing. Raises `Failed` when the node is gone."""
    found = read_active(event, cluster)
    if found is None:
        return []
    maintenance, node = found
    name, reference = node["metadata"]["name"], reference_of(event)
    key = group(maintenance).drain_taint
    missing = missing_taints(node, key)
    if missing:
        log_about(f"Maintenance taints will be added to node {name}", maintenance)
        log_about(f"Taints: {missing} will be added to node {name}", maintenance)
        log_about(f"Applying {key} taint add on Node: {name}", maintenance)
        log_about(f"Patching taints on Node: {name}", maintenance)
        patch_node(name, node, lambda fresh: taint_patch(fresh, key), cluster)
    return [events.event(events.NODE_TAINTED, "taint", reference, name, cause=event)]
