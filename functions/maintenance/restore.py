"""Restore the node of a deleted NodeMaintenance: remove taints, cordon, label and lease, and the finalizer last.

The step also restores the node of a maintenance that has lost its Lease to another tool (NMO-27a), and an orphaned
node. A node is orphaned if a late write cordons it again after the restore, or if a client removes the maintenance's
finalizer (design rule 12).

In: an updated NodeMaintenance, `maintenance.restore_pending`.
Out: `node.restored`, or `maintenance.pending` for the successor.
Touches: nodemaintenances get, list, patch; nodes get, patch; leases get, delete in medik8s-leases;
events list, create, patch in default.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import get_metadata, require_data
from functions.event_recorder import EVENT_RECORDER
from functions.failures import Retry
from functions.installs import is_active_install
from functions.maintenance.event_objects import (
    build_step_failed,
    log_about,
    parse_node_name,
    parse_reference,
    read_maintenance,
)
from functions.node_patching import MAX_ATTEMPTS, patch_node
from functions.steps import step
from kube.client.api import get_or_none
from kube.client.api_errors import Conflict, NotFound, Rejected
from kube.client.sync_client import SyncClient
from kube.maintenance import leases
from kube.maintenance import objects as m
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.kubernetes_events import (
    REMOVE_REASON,
    UNCORDON_REASON,
    build_node_kubernetes_event,
    build_progress_events,
)
from kube.maintenance.lookup import list_maintenances, list_undeleted_maintenances
from kube.maintenance.status_patch import is_restore_failure_reported
from kube.nodes import (
    Node,
    build_node_path,
    build_restore_patch,
    get_maintenance_uid,
    has_maintenance_label,
    is_labelled_with_maintenance,
    is_tainted,
)
from kube.paths import Object


@step(
    "restore",
    consumes=(events.RESOURCE_UPDATED, events.MAINTENANCE_RESTORE_PENDING),
    emits=(events.NODE_RESTORED, events.MAINTENANCE_PENDING),
    kind="NodeMaintenance",
    on_failure=build_step_failed,
)
def restore(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Undo the maintenance's changes to its node (NMO-14, 15, 16), or hand the node over to a successor (X-7)."""
    if event.get_type() == events.RESOURCE_UPDATED and (
        not _needs_restore(event) or is_restore_failure_reported(require_data(event))
    ):
        # Each status write triggers this step, even the write that reports a failed restore, so it must not read here.
        return []
    if not is_active_install(client):
        return []
    maintenance = read_maintenance(event, client)
    if maintenance is None or m.is_released(maintenance):
        return _restore_orphaned_node(event, client) if event.get_type() == events.MAINTENANCE_RESTORE_PENDING else []
    if not m.is_deleting(maintenance):
        return _restore_after_lease_loss(event, maintenance, client) if m.has_lost_lease(maintenance) else []
    log_about("Reconciling NodeMaintenance", maintenance)
    name = m.get_node_name(maintenance)
    others, is_node_deleted = _restore_node(maintenance, name, client)
    lease = _get_lease(name, client)
    if lease is not None and leases.is_holder(lease, maintenance):
        _delete_lease(lease, client)
    try:
        client.patch(m.build_path(maintenance), m.build_release_patch(maintenance))
    except NotFound:
        return []
    except Conflict:
        raise Retry("the NodeMaintenance changed while its finalizer was being removed") from None
    log_about(f"NodeMaintenance Object: /{maintenance['metadata']['name']} Deleted ", maintenance)
    client.run(EVENT_RECORDER.record(client.api, build_progress_events(REMOVE_REASON, maintenance)))
    return [_build_next_event(event, maintenance, others, is_node_deleted=is_node_deleted)]


def _needs_restore(event: BaseCloudEvent) -> bool:
    """Return whether the event's NodeMaintenance is being deleted or has lost its Lease."""
    return bool(get_metadata(event).get("deletionTimestamp")) or m.has_lost_lease(require_data(event))


def _restore_after_lease_loss(
    event: BaseCloudEvent, maintenance: m.Maintenance, client: SyncClient
) -> list[BaseCloudEvent]:
    """Restore the node of a maintenance that has lost its Lease (NMO-27a), unless the node is already restored.

    The NodeMaintenance is not deleted, and its status reports the reason.
    """
    name, uid, key = m.get_node_name(maintenance), maintenance["metadata"]["uid"], m.get_group(maintenance).drain_taint

    def read_and_build_patch() -> tuple[None, list[Object]]:
        node = _get_node(name, client)
        return None, build_restore_patch(node, {key}) if node is not None and is_labelled_with_maintenance(
            node, uid
        ) else []

    _, changed = patch_node(name, read_and_build_patch, client)
    if not changed:
        return []
    _record_uncordon(name, maintenance, client)
    return [
        events.build_event(
            events.NODE_RESTORED, "restore", events.ObjectReference.from_object(maintenance), name, cause=event
        )
    ]


def _restore_node(maintenance: m.Maintenance, node_name: str, client: SyncClient) -> tuple[list[Object], bool]:
    """Remove the maintenance's taints from the node, or hand the node over to the successor, which keeps its taint.

    Without a successor, the function also removes the cordon and the label. Returns the node's other maintenances, the
    successor first, and whether the node no longer exists.
    """
    key = m.get_group(maintenance).drain_taint

    def read_and_build_patch() -> tuple[tuple[Node | None, list[Object], bool], list[Object]]:
        node = _get_node(node_name, client)
        # List the maintenances after reading the node, so that the list includes the maintenance in the node's label.
        # If that maintenance was deleted in between, the label has changed and the patch fails.
        others = _list_other_maintenances(node_name, client)
        is_restored = (
            m.has_lost_lease(maintenance) and node is not None and not _has_maintenance_label_or_taint(node, key)
        )
        if node is None or is_restored or not m.has_begun_on(maintenance, node):
            return (None, others, node is None), []
        # Keep only the successor's taint, because the other maintenances wait and may never begin.
        needed_taints = {m.get_group(other).drain_taint for other in others[:1]}
        first_uid = others[0]["metadata"]["uid"] if others else ""
        return (node, others, False), build_restore_patch(
            node, _select_taints_to_remove(maintenance, node, others) - needed_taints, next_maintenance_uid=first_uid
        )

    (node, others, is_deleted), changed = patch_node(node_name, read_and_build_patch, client)
    if node is not None:
        log_about(f"Maintenance taints will be removed from node {node_name}", maintenance)
        log_about(f"Applying {key} taint remove on Node: {node_name}", maintenance)
    if changed and not others:
        _record_uncordon(node_name, maintenance, client)
    return others, is_deleted


def _has_maintenance_label_or_taint(node: Node, taint_key: str) -> bool:
    """Return whether the node has the maintenance label, or the drain taint (if another client removed the label)."""
    return has_maintenance_label(node) or is_tainted(node, taint_key)


def _select_taints_to_remove(maintenance: m.Maintenance, node: Node, successors: list[Object]) -> frozenset[str]:
    """Return the drain taints to remove: usually only the taint of the maintenance's API group.

    If the node's label contains the uid of an unknown maintenance, the taints of all API groups are removed.
    """
    known = {item["metadata"]["uid"] for item in (maintenance, *successors)}
    is_unknown = get_maintenance_uid(node) not in {None, *known}
    return DRAIN_TAINTS if is_unknown else frozenset({m.get_group(maintenance).drain_taint})


def _list_other_maintenances(node_name: str, client: SyncClient) -> list[Object]:
    """Return the node's other maintenances, oldest first, and add the finalizer to the oldest one, the successor.

    With the finalizer, a deletion of the successor waits until the node is restored. If the successor is being deleted
    or has changed, the function lists the maintenances again. Raises `Retry` after several attempts.
    """
    reason = f"other clients changed the object {MAX_ATTEMPTS} times"
    for _ in range(MAX_ATTEMPTS):
        undeleted = client.run(list_undeleted_maintenances(client.api, node_name))
        others = [item for item in undeleted if m.owns_or_awaits_node(item)]
        if not others or m.has_finalizer(others[0]):
            return others
        try:
            client.patch(m.build_path(others[0]), m.build_finalizer_patch(others[0]))
            return others
        except Rejected as error:
            reason = error.message
        except (NotFound, Conflict):
            continue
    raise Retry(f'cannot add the finalizer to the next NodeMaintenance of node "{node_name}": {reason}')


def _record_uncordon(node_name: str, maintenance: m.Maintenance, client: SyncClient) -> None:
    log_about(f"uncordon Node: {node_name}", maintenance)
    client.run(
        EVENT_RECORDER.record(client.api, [build_node_kubernetes_event(node_name, UNCORDON_REASON, maintenance)])
    )


def _restore_orphaned_node(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Restore an orphaned node, which has the label or the Lease of a maintenance that no longer exists.

    Does nothing if another maintenance holds the node or waits for it. Since the API group of the missing maintenance
    is unknown, the function removes the drain taints of all API groups.
    """
    name, reference = parse_node_name(event), parse_reference(event)
    lease = _get_lease(name, client)

    def read_and_build_patch() -> tuple[bool, list[Object]]:
        node = _get_node(name, client)
        is_claimed = any(m.owns_or_awaits_node(item) for item in client.run(list_maintenances(client.api, name)))
        is_orphaned = node is not None and has_maintenance_label(node) and not is_claimed
        return is_claimed, build_restore_patch(node, DRAIN_TAINTS) if node and is_orphaned else []

    is_claimed, changed = patch_node(name, read_and_build_patch, client)
    if is_claimed:
        return []
    if changed:
        _record_uncordon(name, reference.as_partial_object(name), client)
    is_lease_deleted = lease is not None and leases.parse_holder(lease) is not None and _delete_lease(lease, client)
    return (
        [events.build_event(events.NODE_RESTORED, "restore", reference, name, cause=event)]
        if changed or is_lease_deleted
        else []
    )


def _get_node(node_name: str, client: SyncClient) -> Node | None:
    return client.run(get_or_none(client.api.get(build_node_path(node_name))))


def _get_lease(node: str, client: SyncClient) -> Object | None:
    return client.run(get_or_none(client.api.get(leases.build_lease_path(node))))


def _delete_lease(lease: Object, client: SyncClient) -> bool:
    """Delete the Lease unless another client has changed it; return whether this call deleted the Lease."""
    metadata, path = lease["metadata"], leases.build_lease_path(leases.parse_node_name(lease))
    try:
        client.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
    except (NotFound, Conflict):
        return False  # A duplicate event has deleted the Lease, or the successor has acquired it.
    return True


def _build_next_event(
    event: BaseCloudEvent, maintenance: m.Maintenance, successors: list[Object], *, is_node_deleted: bool
) -> BaseCloudEvent:
    if successors:
        successor = successors[0]
        return events.build_event(
            events.MAINTENANCE_PENDING,
            "restore",
            events.ObjectReference.from_object(successor),
            m.get_node_name(successor),
            cause=event,
        )
    return events.build_event(
        events.NODE_RESTORED,
        "restore",
        events.ObjectReference.from_object(maintenance),
        m.get_node_name(maintenance),
        cause=event,
        data={"nodeDeleted": True} if is_node_deleted else None,
    )
