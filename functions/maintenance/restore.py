"""Give the node back when its NodeMaintenance is deleted: taints, cordon, label off, lease released, finalizer last.

So it does for a maintenance that has lost its lease to another tool (NMO-27a), and for one that is gone already, when
a late write closed its node again, or somebody took the finalizer off it (design rule 12).

In: an updated NodeMaintenance, `maintenance.ended`. Out: `node.restored`, or `maintenance.found` for the next one.
Touches: nodemaintenances get, list, patch; nodes get, patch; leases get, delete in medik8s-leases;
events list, create, patch in default.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.data import data_of, metadata_of
from functions.failures import Retry
from functions.installs import acts
from functions.maintenance.announcing import announce_on_node, announce_progress
from functions.maintenance.subject import log_about, node_of, read_maintenance, reference_of
from functions.patching import ATTEMPTS, patch_node
from kube.door.api import absent_ok
from kube.door.api_errors import Conflict, NotFound, Rejected
from kube.door.sync_client import Cluster
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.announcements import REMOVE, TEXTS, UNCORDON
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.lookup import maintenances, undeleted
from kube.maintenance.progress import is_told_kept
from kube.nodes import Node, is_labelled, is_labelled_for, is_tainted, labelled_for, node_path, restore_patch
from kube.paths import Object

CONSUMES = (events.RESOURCE_UPDATED, events.MAINTENANCE_ENDED)
EMITS = (events.NODE_RESTORED, events.MAINTENANCE_FOUND)


def restore(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Undo what the maintenance did to its node (NMO-14, 15, 16); hand it over to another one, if any (X-7)."""
    if event.get_type() == events.RESOURCE_UPDATED and (not _is_ending(event) or is_told_kept(data_of(event))):
        return []  # the hint suffices: every status write comes by here, also the one that tells of a failure
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
    """Whether the event's NodeMaintenance is being deleted, or has given up."""
    return bool(metadata_of(event).get("deletionTimestamp")) or m.has_given_up(data_of(event))


def _give_up(event: BaseCloudEvent, maintenance: m.Maintenance, cluster: Cluster) -> list[BaseCloudEvent]:
    """Give the node back, once, whose lease another tool has (NMO-27a); the object stays and says why."""
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
    """Take off the taints nobody else needs; cordon and label only when no other maintenance names the node.

    Returns those others.
    """
    key = m.group(maintenance).drain_taint

    def look() -> tuple[tuple[Node | None, list[Object]], list[Object]]:
        node = _node(name, cluster)
        others = _heirs(name, cluster)  # after the node: whoever closed it is among them, or the label changes again
        is_given_back = m.has_given_up(maintenance) and node is not None and not _is_left(node, key)
        if node is None or is_given_back or not m.began_on(maintenance, node):
            return (None, others), []
        needed = {m.group(other).drain_taint for other in others[:1]}  # the rest wait, and may never begin
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
    """Whether one that gave up left its node closed: our label is on it, or, if that was taken off, the taint."""
    return is_labelled(node) or is_tainted(node, key)


def _left_by(maintenance: m.Maintenance, node: Node, others: list[Object]) -> frozenset[str]:
    """The drain taints that end with a maintenance: its own; all of ours where the label names one that vanished."""
    known = {item["metadata"]["uid"] for item in (maintenance, *others)}
    vanished = labelled_for(node) not in {None, *known}
    return DRAIN_TAINTS if vanished else frozenset({m.group(maintenance).drain_taint})


def _heirs(name: str, cluster: Cluster) -> list[Object]:
    """The other maintenances of the node, the first one with our finalizer: deleted from now on, it waits for us, too.

    One that does not take it is being deleted, or was written. Raises `Retry` when that goes on.
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
    """Give back a node that was left closed or leased by a maintenance that is gone, if no other one answers for it.

    Which drain taint it set nobody knows any more: all of ours go.
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
    """Delete the lease as it was read; whether it was this that deleted it."""
    metadata, path = lease["metadata"], leases.lease_path(leases.node_of(lease))
    try:
        cluster.delete(path, uid=metadata["uid"], version=metadata["resourceVersion"])
    except (NotFound, Conflict):
        return False  # released by a duplicate of this event, or acquired by the next one
    return True


def _next(event: BaseCloudEvent, maintenance: m.Maintenance, others: list[Object]) -> BaseCloudEvent:
    if others:
        heir = others[0]
        return events.event(
            events.MAINTENANCE_FOUND, "restore", events.Reference.of(heir), m.node_name(heir), cause=event
        )
    reference = events.Reference.of(maintenance)
    return events.event(events.NODE_RESTORED, "restore", reference, m.node_name(maintenance), cause=event)
