"""Taint the node with the group's drain taint and the unschedulable taint, others untouched (NMO-4, KNM-4, DRN-13).

In: `node.cordoned`. Out: `node.tainted`.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.subject import maintained, reference_of, say
from functions.patching import patch_node
from kube.door.cluster import Cluster
from kube.maintenance.objects import group
from kube.nodes import missing_taints, taint_patch

TAKES = (events.NODE_CORDONED,)
GIVES = (events.NODE_TAINTED,)


def taint(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Add the maintenance taints that are missing. Raises `Failed` when the node is gone."""
    found = maintained(event, cluster)
    if found is None:
        return []
    maintenance, node = found
    name, reference = node["metadata"]["name"], reference_of(event)
    key = group(maintenance).drain_taint
    missing = missing_taints(node, key)
    if missing:
        say(f"Maintenance taints will be added to node {name}", maintenance)
        say(f"Taints: {missing} will be added to node {name}", maintenance)
        say(f"Applying {key} taint add on Node: {name}", maintenance)
        say(f"Patching taints on Node: {name}", maintenance)
        patch_node(name, node, lambda fresh: taint_patch(fresh, key), cluster)
    return [events.event(events.NODE_TAINTED, "taint", reference, name, cause=event)]
