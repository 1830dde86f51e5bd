"""Cordon the node: it takes no new pods (NMO-3), and an Event on it says so (OSV-12).

In: `maintenance.begun`, `node.drifted`. Out: `node.cordoned`.
Touches: nodemaintenances get; nodes get, patch; events list, create in namespace default.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.announcing import announce
from functions.errors import Failed
from functions.patching import patch_node
from functions.subject import active, node_of, path_of, reference_of, say, still
from kube.api import absent_ok
from kube.cluster import Cluster
from kube.nodes import cordon_patch, node_path

TAKES = (events.MAINTENANCE_BEGUN, events.NODE_DRIFTED)
GIVES = (events.NODE_CORDONED,)


def cordon(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Set `spec.unschedulable` where it is not set. Raises `Failed` when the node is gone."""
    name, reference = node_of(event), reference_of(event)
    read = cluster.api.get
    maintenance, node = cluster.together(absent_ok(read(path_of(reference))), absent_ok(read(node_path(name))))
    maintenance = still(maintenance, event)
    if maintenance is None or not active(maintenance, name):
        return []
    if node is None:
        raise Failed(f'nodes "{name}" not found')
    if patch_node(name, node, cordon_patch, cluster):
        say(f"cordon Node: {name}", maintenance)
        announce(name, "NodeNotSchedulable", maintenance, cluster)
    return [events.event(events.NODE_CORDONED, "cordon", reference, name, cause=event)]
