"""Cordon the node, so that it takes no new pods, and label it as under maintenance (NMO-3, design rule 10).

In: `maintenance.begun`, `node.drifted`. Out: `node.cordoned`, or `maintenance.ended` if the maintenance has ended.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.cordon_and_taint import again, close, given_up
from functions.maintenance.event_objects import log_about, reference_of
from kube.client.sync_client import Cluster
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import Maintenance, group
from kube.nodes import Node, cordon_patch, is_cordoned
from kube.paths import Object

CONSUMES = (events.MAINTENANCE_BEGUN, events.NODE_DRIFTED)
EMITS = (events.NODE_CORDONED, events.MAINTENANCE_ENDED)


def cordon(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Set `spec.unschedulable` and the label if they are missing. Raises `Failed` if the node no longer exists."""
    closed = close(event, cluster, _decide)
    if closed is None:
        return given_up("cordon", event, cluster)
    name, reference = closed.node["metadata"]["name"], reference_of(event)
    if closed.changed and not is_cordoned(closed.node):
        log_about(f"cordon Node: {name}", closed.maintenance)
    return [events.event(events.NODE_CORDONED, "cordon", reference, name, cause=event, data=again(event))]


def _decide(maintenance: Maintenance, node: Node) -> list[Object]:
    others = DRAIN_TAINTS - {group(maintenance).drain_taint}
    return cordon_patch(node, maintenance["metadata"]["uid"], others)
