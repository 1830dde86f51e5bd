"""Cordon the node, which takes no new pods then, and label it as under maintenance (NMO-3, design rule 10).

In: `maintenance.begun`, `node.drifted`. Out: `node.cordoned`.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.subject import log_about, read_active, reference_of
from functions.patching import patch_node
from kube.door.cluster import Cluster
from kube.nodes import cordon_patch, is_cordoned

CONSUMES = (events.MAINTENANCE_BEGUN, events.NODE_DRIFTED)
EMITS = (events.NODE_CORDONED,)


def cordon(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Set `spec.unschedulable` and the label where they are not set. Raises `Failed` when the node is gone."""
    found = read_active(event, cluster)
    if found is None:
        return []
    maintenance, node = found
    name, reference = node["metadata"]["name"], reference_of(event)
    holder, cordoned = reference.uid, is_cordoned(node)
    if patch_node(name, node, lambda fresh: cordon_patch(fresh, holder), cluster) and not cordoned:
        log_about(f"cordon Node: {name}", maintenance)
    return [events.event(events.NODE_CORDONED, "cordon", reference, name, cause=event)]
