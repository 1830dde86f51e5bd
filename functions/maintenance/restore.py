"""Give the node back when its NodeMaintenance is deleted: taints, cordon, label off, lease released, finalizer last.

In: an updated NodeMaintenance, `maintenance.ended`. Out: `node.restored`, or `maintenance.found` for the next one.
Touches: nodemaintenances get, list, patch; nodes get, patch; leases get, delete in node-maintenance;
events list, create, patch in default.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.data import metadata_of
from functions.failures import Retry
from functions.maintenance.announcing import announce_on_node, announce_progress, announce_scheduling
from functions.maintenance.subject import log_about, read_maintenance
from functions.patching import patch_node
from kube.door.api import absent_ok
from kube.door.cluster import Cluster
from kube.door.errors import Conflict, NotFound
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.announcements import REMOVE, TEXTS, UNCORDON
from kube.maintenance.lookup import undeleted
from kube.nodes import Node, node_path, restore_patch
from kube.paths import Object

CONSUMES = (events.RESOURCE_UPDATED, events.MAINTENANCE_ENDED)
EMITS = (events.NODE_RESTORED, events.MAINTENANCE_FOUND)


def restore(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Undo what the maintenance did to its node (NMO-14, 15, 16); hand it over to another one, if any (X-7)."""
    if event.get_type() == events.RESOURCE_UPDATED and not metadata_of(event).get("deletionTimestamp"):
        return []  # the hint suffices: every status write comes by here
    maintenance = read_maintenance(event, cluster)
    if maintenance is None or not m.is_deleting(maintenance) or not m.has_finalizer(maintenance):
        return []
    name = m.node_name(maintenance)
    others = cluster.run(undeleted(cluster.api, name))
    node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    if node is not None and m.began_on(maintenance, node):
        _give_back(maintenance, node, others, cluster)
    _release(maintenance, name, cluster)
    try:
        cluster.patch(m.path(maintenance), m.release_patch(maintenance))
    except NotFound:
        return []
    except Conflict:
        raise Retry("the object changed while its finalizer was taken off") from None
    log_about(f"NodeMaintenance Object: /{maintenance['metadata']['name']} Deleted ", maintenance)
    announce_progress(REMOVE, maintenance, cluster)
    return [_next(event, maintenance, others)]


def _give_back(maintenance: m.Maintenance, node: Node, others: list[Object], cluster: Cluster) -> None:
    """Take off the taints nobody else needs; cordon and label only when no other maintenance names the node."""
    name = node["metadata"]["name"]
    key = m.group(maintenance).drain_taint
    needed = {m.group(other).drain_taint for other in others}
    heir = others[0]["metadata"]["uid"] if others else ""
    log_about(f"Maintenance taints will be removed from node {name}", maintenance)
    log_about(f"Applying {key} taint remove on Node: {name}", maintenance)

    def decide(fresh: Node) -> list[Object]:
        return restore_patch(fresh, {key} - needed, heir=heir)

    changed = patch_node(name, node, decide, cluster)
    if changed and not others:
        log_about(f"uncordon Node: {name}", maintenance)
        announce_scheduling(name, "NodeSchedulable", maintenance, cluster)
        announce_on_node(name, UNCORDON, TEXTS[UNCORDON], maintenance, cluster, kind="Normal")


def _release(maintenance: m.Maintenance, node: str, cluster: Cluster) -> None:
    """Delete the node's lease if this object is its holder."""
    lease = cluster.run(absent_ok(cluster.api.get(leases.lease_path(node))))
    if lease is None or not leases.is_holder(lease, maintenance):
        return
    try:
        cluster.delete(leases.lease_path(node), uid=lease["metadata"]["uid"])
    except (NotFound, Conflict):
        return  # released by a duplicate of this event


def _next(event: BaseCloudEvent, maintenance: m.Maintenance, others: list[Object]) -> BaseCloudEvent:
    if others:
        heir = others[0]
        return events.event(
            events.MAINTENANCE_FOUND, "restore", events.Reference.of(heir), m.node_name(heir), cause=event
        )
    reference = events.Reference.of(maintenance)
    return events.event(events.NODE_RESTORED, "restore", reference, m.node_name(maintenance), cause=event)
