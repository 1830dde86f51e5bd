"""Give the node back when its NodeMaintenance is deleted: taints and cordon off, lease released, finalizer off last.

In: an updated NodeMaintenance, `maintenance.ended`. Out: `node.restored`, or `maintenance.found` for the next holder.
Touches: nodemaintenances get, list, patch; nodes get, patch; leases get, delete in node-maintenance;
events list, create, patch in default.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.failures import Retry
from functions.maintenance.announcing import announce, report, tell
from functions.maintenance.subject import live, metadata_of, say
from functions.patching import patch_node
from kube.door.api import absent_ok
from kube.door.cluster import Cluster
from kube.door.errors import Conflict, NotFound
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.announcements import REMOVE, TEXTS, UNCORDON
from kube.maintenance.lookup import holders
from kube.nodes import Node, node_path, restore_patch
from kube.paths import Object

TAKES = (events.RESOURCE_UPDATED, events.MAINTENANCE_ENDED)
GIVES = (events.NODE_RESTORED, events.MAINTENANCE_FOUND)


def restore(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Undo what the maintenance did to its node (NMO-14, 15, 16); hand it over when another holds it too (X-7)."""
    if event.get_type() == events.RESOURCE_UPDATED and not metadata_of(event).get("deletionTimestamp"):
        return []  # the hint suffices: every status write comes by here
    maintenance = live(event, cluster)
    if maintenance is None or not m.is_deleting(maintenance) or not m.is_held(maintenance):
        return []
    name = m.node_name(maintenance)
    others = cluster.run(holders(cluster.api, name))
    node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    if node is not None:
        _give_back(maintenance, node, others, cluster)
    _release(maintenance, name, cluster)
    try:
        cluster.patch(m.path(maintenance), m.release_patch(maintenance))
    except NotFound:
        return []
    except Conflict:
        raise Retry("the object changed while its finalizer was taken off") from None
    say(f"NodeMaintenance Object: /{maintenance['metadata']['name']} Deleted ", maintenance)
    report(REMOVE, maintenance, cluster)
    return [_next(event, maintenance, others)]


def _give_back(maintenance: m.Maintenance, node: Node, others: list[Object], cluster: Cluster) -> None:
    """Take off the taints nobody else needs; the cordon only when nobody else holds the node."""
    name = node["metadata"]["name"]
    key = m.group(maintenance).drain_taint
    needed = {m.group(other).drain_taint for other in others}
    say(f"Maintenance taints will be removed from node {name}", maintenance)
    say(f"Applying {key} taint remove on Node: {name}", maintenance)

    def decide(fresh: Node) -> list[Object]:
        return restore_patch(fresh, {key} - needed, uncordon=not others)

    changed = patch_node(name, node, decide, cluster)
    if changed and not others:
        say(f"uncordon Node: {name}", maintenance)
        announce(name, "NodeSchedulable", maintenance, cluster)
        tell(name, UNCORDON, TEXTS[UNCORDON], maintenance, cluster, kind="Normal")


def _release(maintenance: m.Maintenance, node: str, cluster: Cluster) -> None:
    """Delete the node's lease if it is held for this object."""
    lease = cluster.run(absent_ok(cluster.api.get(leases.lease_path(node))))
    if lease is None or not leases.is_held_for(lease, maintenance):
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
