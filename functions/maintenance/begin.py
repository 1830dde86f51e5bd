"""Begin a maintenance: acquire the node's lease, count its pods, and set finalizer, owner and counts in one patch.

In: an added NodeMaintenance, or `maintenance.pending`.
Out: `maintenance.begun`; `maintenance.restore_pending` for a successor that was deleted after the node's handover.
Touches: nodemaintenances get, list, patch, delete; nodes get, list; pods list; daemonsets get;
poddisruptionbudgets get; leases get, create, patch in medik8s-leases.
The step deletes no NodeMaintenance. It has the delete permission because the admission plugin
OwnerReferencesPermissionEnforcement, if enabled, requires this permission from clients that set an owner reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.signatures import has_valid_signature
from functions.event_data import require_data
from functions.failures import Failed, Retry
from functions.installs import is_active_install
from functions.maintenance.cordon_and_taint import build_restore_pending
from functions.maintenance.event_objects import (
    build_step_failed,
    log_about,
    read_maintenance,
)
from functions.maintenance.node_lease import LeaseHeldByOther, acquire_lease, hold_quorum_lease
from functions.steps import step
from kube.client.api import get_or_none
from kube.client.api_errors import NotFound
from kube.client.paging import ListResult
from kube.client.sync_client import SyncClient
from kube.maintenance import drain_flags, leases
from kube.maintenance import objects as m
from kube.maintenance.lookup import find_orphan_uids, list_pods_on_node
from kube.maintenance.node_snapshot import StepSnapshot
from kube.nodes import Node, build_node_path, is_cordoned_and_tainted, is_unreachable
from kube.paths import Object
from kube.pods import Pod


def build_begin_failed(step: str, event: BaseCloudEvent, error: str) -> list[BaseCloudEvent]:
    """Build `maintenance.step_failed`; copy `begun` from a `maintenance.pending` event of `resync`.

    `begun` marks an error of a maintenance that has already begun. Without `begun`, `status` ignores the error of such
    a maintenance. Raises `Retry` if the event names no maintenance.
    """
    begun = (
        event.get_type() == events.MAINTENANCE_PENDING
        and require_data(event).get("begun") is True
        and has_valid_signature(event)
    )
    return build_step_failed(step, event, error, **({"begun": True} if begun else {}))


@step(
    "begin",
    consumes=(events.RESOURCE_ADDED, events.MAINTENANCE_PENDING),
    emits=(events.MAINTENANCE_BEGUN, events.MAINTENANCE_RESTORE_PENDING),
    kind="NodeMaintenance",
    on_failure=build_begin_failed,
)
def begin(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Make the maintenance the holder of its node's Lease (NMO-11, 16, 19, 20, 22, 23).

    If another client has removed the finalizer, the owner reference or the pod counts, the step writes them again; it
    takes the pod counts from the status. Raises `Failed` if the maintenance cannot begin.
    """
    maintenance = read_maintenance(event, client)
    if maintenance is None:
        # When `restore` hands the node over, it adds a finalizer to the successor. If the successor is deleted at the
        # same moment, the API server may delete it without waiting for the finalizer's removal.
        is_pending = event.get_type() == events.MAINTENANCE_PENDING
        return build_restore_pending("begin", event, client) if is_pending else []
    if m.is_deleting(maintenance) or m.has_lost_lease(maintenance):
        return []
    if not is_active_install(client, acquire=True):
        return []
    log_about("Reconciling NodeMaintenance", maintenance)
    name = m.get_node_name(maintenance)
    if not name:
        raise Failed("spec.nodeName is missing: name the node to maintain")
    counts = m.find_initial_pod_counts(maintenance)
    node, lease, pods = _read_node_state(name, client, is_new_maintenance=counts is None)
    if node is None:
        raise Failed(f'nodes "{name}" not found')
    try:
        with hold_quorum_lease(node, maintenance, client) if counts is None else nullcontext():
            acquire_lease(lease, maintenance, node, client)
            counts, leaving = (counts, []) if counts else _count_pods(maintenance, node, pods.items, client)
            patch = m.build_begin_patch(maintenance, node, counts)
            patched = _patch_maintenance(maintenance, patch, client)
    except LeaseHeldByOther as error:
        return _build_lease_failed(event, maintenance, str(error))
    if not patch and _has_succeeded(maintenance):
        return []
    snapshot = {**_build_snapshot(patched, node, leaving), "podsVersion": pods.resource_version} if leaving else {}
    reference, data = events.ObjectReference.from_object(maintenance), {**counts, **snapshot}
    return [events.build_event(events.MAINTENANCE_BEGUN, "begin", reference, name, cause=event, data=data)]


def _has_succeeded(maintenance: m.Maintenance) -> bool:
    """Return whether the status reports phase `Succeeded`, and no error that `maintenance.begun` would clear."""
    has_error = m.get_lease_error_count(maintenance) or m.get_last_error(maintenance)
    return m.get_phase(maintenance) == m.SUCCEEDED and not has_error


def _build_snapshot(maintenance: m.Maintenance, node: Node, leaving_pods: list[Pod]) -> Object:
    """Return a snapshot of the node and its remaining pods as event data.

    `status` uses the snapshot instead of reading the cluster, unless the maintenance has changed since.
    """
    is_unschedulable = is_cordoned_and_tainted(node, m.get_group(maintenance).drain_taint)
    return StepSnapshot.from_maintenance(
        maintenance, is_cordoned_and_tainted=is_unschedulable, leaving=leaving_pods, is_unreachable=is_unreachable(node)
    ).as_data()


def _patch_maintenance(maintenance: m.Maintenance, patch: Object, client: SyncClient) -> m.Maintenance:
    """Apply the patch and return the patched maintenance. Raises `Retry` if the maintenance was deleted."""
    try:
        return client.patch(m.build_path(maintenance), patch) if patch else maintenance
    except NotFound:
        raise Retry(f'NodeMaintenance "{maintenance["metadata"]["name"]}" was deleted while it began') from None


def _build_lease_failed(event: BaseCloudEvent, maintenance: m.Maintenance, reason: str) -> list[BaseCloudEvent]:
    """Return `maintenance.step_failed` for a node's Lease that another client holds (NMO-27a).

    A maintenance that has not begun waits for the Lease. For a maintenance that has begun, the event contains the
    number of failed renewals.
    """
    if not m.has_begun(maintenance):
        return build_step_failed(
            "begin", event, f"{reason}: the maintenance begins when the lease is released", waits=True
        )
    count = m.get_lease_error_count(maintenance) + 1
    error = f"cannot renew the lease: {reason}; errorOnLeaseCount {count}"
    return build_step_failed("begin", event, error, leaseErrors=count)


def _read_node_state(
    node_name: str, client: SyncClient, *, is_new_maintenance: bool
) -> tuple[Node | None, Object | None, ListResult]:
    """Return the node, its Lease (None for a new maintenance) and its pods (only for a new maintenance).

    The requests are concurrent, because a list request takes up to 0.1 s even in an idle cluster. For a new
    maintenance, the function does not read the Lease. Usually no Lease exists then, and otherwise the create request
    fails with a conflict.
    """
    node_read = get_or_none(client.api.get(build_node_path(node_name)))
    if is_new_maintenance:
        node, pods = client.gather_all(node_read, list_pods_on_node(client.api, node_name))
        return node, None, pods
    node, lease = client.gather_all(node_read, get_or_none(client.api.get(leases.build_lease_path(node_name))))
    return node, lease, ListResult([], "")


def _count_pods(
    maintenance: m.Maintenance, node: Node, pods: Sequence[Pod], client: SyncClient
) -> tuple[Object, list[Pod]]:
    """Return the numbers of all pods and of pods to evict (DRN-1a), as maintenance fields, and the pods to evict."""
    reason = m.get_spec(maintenance).get("reason") or ""
    name = node["metadata"]["name"]
    log_about("Applying maintenance mode", maintenance, reason=reason)
    log_about(f"Applying Maintenance mode on Node: {name} with Reason: {reason}", maintenance)
    options, orphan_uids = drain_flags.parse_drain_options(maintenance), client.run(find_orphan_uids(client.api, pods))
    classification = drain_flags.classify_for_drain(pods, options, datetime.now(timezone.utc), orphan_uids)
    if warning := drain_flags.build_drain_warning(classification, options):
        log_about(f"WARNING: {warning}", maintenance)
    return {"totalpods": len(pods), "evictionPods": len(classification.leaving)}, classification.leaving
