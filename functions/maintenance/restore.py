"""Restore the node of a deleted NodeMaintenance: remove taints, cordon, label and lease, and the finalizer last.

The step also restores the node of a maintenance that has lost its lease to another tool (NMO-27a). It also restores an
orphaned node, whose maintenance is already gone. This happens if a late write cordons the node again, or if a client
removes the finalizer (design rule 12).

In: an updated NodeMaintenance, `maintenance.ended`. Out: `node.restored`, or `maintenance.found` for the successor.
Touches: nodemaintenances get, list, patch; nodes get, patch; leases get, delete in medik8s-leases;
events list, create, patch in default.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import data_of, metadata_of
from functions.failures import Retry
from functions.installs import acts
from functions.maintenance.kubernetes_events import announce_on_node, announce_progress
from functions.maintenance.event_objects import log_about, node_of, read_maintenance, reference_of
from functions.node_patching import ATTEMPTS, patch_node
from kube.client.api import absent_ok
from kube.client.api_errors import Conflict, NotFound, Rejected
from kube.client.sync_client import Cluster
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.kubernetes_events import REMOVE, TEXTS, UNCORDON
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.lookup import maintenances, undeleted
from kube.maintenance.status_patch import is_told_kept
from kube.nodes import Node, is_labelled, is_labelled_for, is_tainted, labelled_for, node_path, restore_patch
from kube.paths import Object

CONSUMES = (events.RESOURCE_UPDATED, events.MAINTENANCE_ENDED)
EMITS = (events.NODE_RESTORED, events.MAINTENANCE_FOUND)


def restore(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Undo what the maintenance did to its node (NMO-14, 15, 16); hand the node over to a successor, if any (X-7)."""
    if event.get_type() == events.RESOURCE_UPDATED and (not _is_ending(event) or is_told_kept(data_of(event))):
        return []  # no read is necessary: each status write triggers this step, even one that reports its failure
    if not acts(cluster):
        return []
    maintenance = read_maintenance(event, cluster)
    if maintenance is None or m.is_over(maintenance):
        return _restore_stray(event, cluster) if event.get_type() == events.MAINTENANCE_ENDED else []
    if not m.is_deleting(maintenance):
        return _give_up(event, maintenance, cluster) if m.has_given_up(maintenance) else []
    log_about("Reconciling NodeMaintenance", maintenance)
    name = m.node_name(maintenance)
    others = _give_back(maintenance, name, cluster)
    lease = _lease(name, cluster)
    if lease is not None and leases.is_holder(lease, maintenance):
        _release(lease, cluster)
    try:
        cluster.patch(m.path(maintenance), m.release_patch(maintenance))
    except NotFound:
        return []
    except Conflict:
        raise Retry("the object changed while its finalizer was taken off") from None
    log_about(f"NodeMaintenance Object: /{maintenance['metadata']['name']} Deleted ", maintenance)
    announce_progress(REMOVE, maintenance, cluster)
    return [_next(event, maintenance, others)]


def _is_ending(event: BaseCloudEvent) -> bool:
    """Return whether the event's NodeMaintenance is being deleted or has lost its lease."""
    return bool(metadata_of(event).get("deletionTimestamp")) or m.has_given_up(data_of(event))


def _give_up(event: BaseCloudEvent, maintenance: m.Maintenance, cluster: Cluster) -> list[BaseCloudEvent]:
    """Restore, once, a node whose lease another tool has (NMO-27a); the NodeMaintenance stays and reports why."""
    name, uid, key = m.node_name(maintenance), maintenance["metadata"]["uid"], m.group(maintenance).drain_taint

    def look() -> tuple[None, list[Object]]:
        node = _node(name, cluster)
        return None, restore_patch(node, {key}) if node is not None and is_labelled_for(node, uid) else []

    _, changed = patch_node(name, look, cluster)
    if not changed:
        return []
    _announce(name, maintenance, cluster)
    return [events.event(events.NODE_RESTORED, "restore", events.Reference.of(maintenance), name, cause=event)]


def _give_back(maintenance: m.Maintenance, name: str, cluster: Cluster) -> list[Object]:
    """Remove the taints that no other maintenance needs; uncordon and unlabel the node if it has no successor.

    Returns the other maintenances of the node, the successor first.
    """
    key = m.group(maintenance).drain_taint

    def look() -> tuple[tuple[Node | None, list[Object]], list[Object]]:
        node = _node(name, cluster)
        # read after the node: the list includes the maintenance in its label, or the patch fails on a changed label
        others = _heirs(name, cluster)
        is_given_back = m.has_given_up(maintenance) and node is not None and not _is_left(node, key)
        if node is None or is_given_back or not m.began_on(maintenance, node):
            return (None, others), []
        needed = {m.group(other).drain_taint for other in others[:1]}  # the others wait, and may never begin
        heir = others[0]["metadata"]["uid"] if others else ""
        return (node, others), restore_patch(node, _left_by(maintenance, node, others) - needed, heir=heir)

    (node, others), changed = patch_node(name, look, cluster)
    if node is not None:
        log_about(f"Maintenance taints will be removed from node {name}", maintenance)
        log_about(f"Applying {key} taint remove on Node: {name}", maintenance)
    if changed and not others:
        _announce(name, maintenance, cluster)
    return others


def _is_left(node: Node, key: str) -> bool:
    """Return whether the node is not restored yet: it has our label or, if a client removed that, the drain taint."""
    return is_labelled(node) or is_tainted(node, key)


def _left_by(maintenance: m.Maintenance, node: Node, others: list[Object]) -> frozenset[str]:
    """Return the drain taints to remove: the maintenance's own, or all if the label names an unknown maintenance."""
    known = {item["metadata"]["uid"] for item in (maintenance, *others)}
    vanished = labelled_for(node) not in {None, *known}
    return DRAIN_TAINTS if vanished else frozenset({m.group(maintenance).drain_taint})


def _heirs(name: str, cluster: Cluster) -> list[Object]:
    """Return the node's other maintenances, oldest first, and set our finalizer on the first one, the successor.

    With the finalizer, a deletion of the successor waits until its node is restored. If the successor is being deleted
    or was just changed, the function lists again. Raises `Retry` if that happens repeatedly.
    """
    why = f"it changed {ATTEMPTS} times"
    for _ in range(ATTEMPTS):
        others = [item for item in cluster.run(undeleted(cluster.api, name)) if m.claims_node(item)]
        if not others or m.has_finalizer(others[0]):
            return others
        try:
            cluster.patch(m.path(others[0]), m.keep_patch(others[0]))
            return others
        except Rejected as error:
            why = error.message
        except (NotFound, Conflict):
            continue
    raise Retry(f"the next maintenance of node {name} takes no finalizer: {why}")


def _announce(name: str, maintenance: m.Maintenance, cluster: Cluster) -> None:
    log_about(f"uncordon Node: {name}", maintenance)
    announce_on_node(name, UNCORDON, TEXTS[UNCORDON], maintenance, cluster, kind="Normal")


def _restore_stray(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Restore an orphaned node, which a maintenance that is gone left cordoned, tainted or leased.

    Does nothing if another maintenance claims the node. Since the drain taint of the maintenance is unknown, the
    function removes the drain taints of all API groups.
    """
    name, reference = node_of(event), reference_of(event)
    lease = _lease(name, cluster)

    def look() -> tuple[bool, list[Object]]:
        node = _node(name, cluster)
        answered = any(m.claims_node(item) for item in cluster.run(maintenances(cluster.api, name)))
        stray = node is not None and is_labelled(node) and not answered
        return answered, restore_patch(node, DRAIN_TAINTS) if node and stray else []

    answered, changed = patch_node(name, look, cluster)
    if answered:
        return []
    if changed:
        _announce(name, reference.as_object(name), cluster)
    released = lease is not None and leases.holder_of(lease) is not None and _release(lease, cluster)
    return [events.event(events.NODE_RESTORED, "restore", reference, name, cause=event)] if changed or released else []


def _node(name: str, cluster: Cluster) -> Node | None:
    return cluster.run(absent_ok(cluster.api.get(node_path(name))))


def _lease(node: str, cluster: Cluster) -> Object | None:
    return cluster.run(absent_ok(cluster.api.get(leases.lease_path(node))))


def _release(lease: Object, cluster: Cluster) -> bool:
    """Delete the lease unless it changed since it was read; return whether this call deleted it."""
    metadata, path = lease["metadata"], leases.lease_path(leases.node_of(lease))
    try:
        cluster.delete(path, uid=metadata["uid"], version=metadata["resourceVersion"])
    except (NotFound, Conflict):
        return False  # a duplicate of this event released it, or the successor acquired it
    return True


def _next(event: BaseCloudEvent, maintenance: m.Maintenance, others: list[Object]) -> BaseCloudEvent:
    if others:
        heir = others[0]
        return events.event(
            events.MAINTENANCE_FOUND, "restore", events.Reference.of(heir), m.node_name(heir), cause=event
        )
    reference = events.Reference.of(maintenance)
    return events.event(events.NODE_RESTORED, "restore", reference, m.node_name(maintenance), cause=event)
