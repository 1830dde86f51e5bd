"""Taint the node with the group's drain taint and the unschedulable taint, others untouched (NMO-4, KNM-4, DRN-13).

In: `node.cordoned`. Out: `node.tainted`.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.errors import Failed
from functions.patching import patch_node
from functions.subject import active, node_of, path_of, reference_of, say, still
from kube.api import absent_ok
from kube.cluster import Cluster
from kube.maintenance import group
from kube.nodes import missing_taints, node_path, taint_patch

TAKES = (events.NODE_CORDONED,)
GIVES = (events.NODE_TAINTED,)


def taint(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Add the maintenance taints that are missing. Raises `Failed` when the node is gone."""
    name, reference = node_of(event), reference_of(event)
    read = cluster.api.get
    maintenance, node = cluster.together(absent_ok(read(path_of(reference))), absent_ok(read(node_path(name))))
    maintenance = still(maintenance, event)
    if maintenance is None or not active(maintenance, name):
        return []
    if node is None:
        raise Failed(f'nodes "{name}" not found')
    key = group(maintenance).drain_taint
    missing = missing_taints(node, key)
    if missing:
        say(f"Maintenance taints will be added to node {name}", maintenance)
        say(f"Taints: {missing} will be added to node {name}", maintenance)
        say(f"Applying {key} taint add on Node: {name}", maintenance)
        say(f"Patching taints on Node: {name}", maintenance)
        patch_node(name, node, lambda fresh: taint_patch(fresh, key), cluster)
    return [events.event(events.NODE_TAINTED, "taint", reference, name, cause=event)]
