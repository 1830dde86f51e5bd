"""Add the API group's drain taint and the unschedulable taint to the node; keep all others (NMO-4, KNM-4, DRN-13).

In: `node.cordoned`. Out: `node.tainted`, or `maintenance.ended` if the maintenance has ended.
Touches: nodemaintenances get; nodes get, patch.
"""

from __future__ import annotations

import json

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.maintenance.cordon_and_taint import again, came_late, close, given_up
from functions.maintenance.event_objects import log_about, reference_of
from kube.client.sync_client import Cluster
from kube.maintenance.objects import Maintenance, group
from kube.nodes import Node, taint_patch, taints_to_log
from kube.paths import Object

CONSUMES = (events.NODE_CORDONED,)
EMITS = (events.NODE_TAINTED, events.MAINTENANCE_ENDED)


def taint(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Add the maintenance taints that are missing. Raises `Failed` if the node no longer exists."""
    closed = close(event, cluster, _decide)
    if closed is None or came_late(event, closed, cluster):
        return given_up("taint", event, cluster)
    if closed.changed:
        _log(closed.maintenance, closed.node)
    name, reference = closed.node["metadata"]["name"], reference_of(event)
    return [events.event(events.NODE_TAINTED, "taint", reference, name, cause=event, data=again(event))]


def _decide(maintenance: Maintenance, node: Node) -> list[Object]:
    return taint_patch(node, group(maintenance).drain_taint, maintenance["metadata"]["uid"])


def _log(maintenance: Maintenance, node: Node) -> None:
    """Log the taints that were added; `node` is the node before the write."""
    name, key = node["metadata"]["name"], group(maintenance).drain_taint
    log_about(f"Maintenance taints will be added to node {name}", maintenance)
    added = json.dumps(taints_to_log(node, key), separators=(",", ":"))
    log_about(f"Taints: {added} will be added to node {name}", maintenance)
    log_about(f"Applying {key} taint add on Node: {name}", maintenance)
    log_about(f"Patching taints on Node: {name}", maintenance)
