"""Begin a maintenance: acquire the node's lease, count its pods, write finalizer, owner and counts in one patch.

In: an added NodeMaintenance, or `maintenance.found`. Out: `maintenance.begun`; `maintenance.ended` for a successor
that received the node and was then deleted.
Touches: nodemaintenances get, list, patch, delete; nodes get, list; pods list; daemonsets get;
poddisruptionbudgets get; leases get, create, patch in medik8s-leases.
The step deletes no NodeMaintenance. It needs the right because the admission plugin
OwnerReferencesPermissionEnforcement, where enabled, requires it from clients that set an owner reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timezone

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.signatures import is_ours
from functions.event_data import data_of
from functions.failures import Failed, Retry
from functions.installs import acts
from functions.maintenance.quorum_lease import disrupting
from functions.maintenance.event_objects import failed, log_about, node_of, read_maintenance, reference_of
from kube.client.api import Api, absent_ok
from kube.client.api_errors import Conflict, NotFound
from kube.client.eviction_batch import orphans
from kube.client.paging import Listed
from kube.client.sync_client import Cluster
from kube.maintenance import drain_flags, leases
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS
from kube.maintenance.lookup import maintenances, pods_on_node
from kube.maintenance.node_snapshot import Looked
from kube.nodes import Node, is_closed, is_labelled_for, labelled_for, node_path
from kube.paths import Object, segment
from kube.pods import Pod

CONSUMES = (events.RESOURCE_ADDED, events.MAINTENANCE_FOUND)
EMITS = (events.MAINTENANCE_BEGUN, events.MAINTENANCE_ENDED)


class HeldByOther(Exception):
    """Raised if another tool holds the lease, or if another maintenance holds it after this one has begun."""


def begin(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Make the maintenance the holder of its node, once (NMO-11, 16, 19, 20, 22, 23). Raises `Failed` if it cannot.

    If another client has removed the finalizer, owner reference or counts, the step writes them again, with the counts
    from the status.
    """
    maintenance = read_maintenance(event, cluster)
    if maintenance is None:
        return _gone(event, cluster)
    if m.is_deleting(maintenance) or m.has_given_up(maintenance):
        return []
    if not acts(cluster, takes=True):
        return []
    log_about("Reconciling NodeMaintenance", maintenance)
    name = m.node_name(maintenance)
    if not name:
        raise Failed("spec.nodeName is missing: name the node to maintain")
    counts = m.counted(maintenance)
    node, lease, pods = _read(name, cluster, is_new=counts is None)
    if node is None:
        raise Failed(f'nodes "{name}" not found')
    try:
        with disrupting(node, maintenance, cluster) if counts is None else nullcontext():
            acquire_lease(lease, maintenance, node, cluster)
            counts, left = (counts, []) if counts else _count(maintenance, node, pods.items, cluster)
            patch = m.begin_patch(maintenance, node, counts)
            written = _written(maintenance, patch, cluster)
    except HeldByOther as error:
        return _without_lease(event, maintenance, str(error))
    is_well = m.phase(maintenance) == m.SUCCEEDED and not (m.lease_errors(maintenance) or m.last_error(maintenance))
    if is_well and not patch:
        return []
    reference = events.Reference.of(maintenance)
    data = {**counts, **({**_looked(written, node, left).as_data(), "podsVersion": pods.version} if left else {})}
    return [events.event(events.MAINTENANCE_BEGUN, "begin", reference, name, cause=event, data=data)]


def could_not_begin(step: str, event: BaseCloudEvent, error: str) -> list[BaseCloudEvent]:
    """Build `maintenance.failed`, with `begun` if the tick reported that the maintenance had begun.

    Without `begun`, the status ignores the error once the maintenance has begun. Raises `Retry` if the event names no
    maintenance.
    """
    begun = event.get_type() == events.MAINTENANCE_FOUND and data_of(event).get("begun") is True and is_ours(event)
    return failed(step, event, error, **({"begun": True} if begun else {}))


def _gone(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return `maintenance.ended` for a deleted successor if the node is labelled for it, else nothing.

    `restore` sets a finalizer on the successor when it hands the node over. The API server ignores that finalizer if it
    is deleting the object at the same moment (X-7).
    """
    if event.get_type() != events.MAINTENANCE_FOUND:
        return []
    reference, name = reference_of(event), node_of(event)
    node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    if not is_labelled_for(node, reference.uid):
        return []
    return [events.event(events.MAINTENANCE_ENDED, "begin", reference, name, cause=event)]


def _written(maintenance: m.Maintenance, patch: Object, cluster: Cluster) -> m.Maintenance:
    """Apply the patch and return the object. Raises `Retry` if the object is gone; the next attempt handles that."""
    try:
        return cluster.patch(m.path(maintenance), patch) if patch else maintenance
    except NotFound:
        raise Retry("the maintenance was deleted while it began") from None


def _without_lease(event: BaseCloudEvent, maintenance: m.Maintenance, reason: str) -> list[BaseCloudEvent]:
    """Return `maintenance.failed` for a lease that another client holds (NMO-27a).

    A maintenance that has not begun waits for the lease; one that has begun counts the failed renewals.
    """
    if not m.has_begun(maintenance):
        return failed("begin", event, f"{reason}: the maintenance begins when it is released", waits=True)
    count = m.lease_errors(maintenance) + 1
    error = f"failed to extend a lease that used to be owned by us: {reason}; errorOnLeaseCount {count}"
    return failed("begin", event, error, leaseErrors=count)


def _read(name: str, cluster: Cluster, *, is_new: bool) -> tuple[Node | None, Object | None, Listed]:
    """Read the node and, concurrently, its pods for a new maintenance or its lease for one that has begun.

    The reads are concurrent since a list takes up to 0.1 s in a quiet cluster. A new maintenance usually finds no
    lease, so the function does not read one: the create request reveals an existing one.
    """
    reading = absent_ok(cluster.api.get(node_path(name)))
    if is_new:
        node, pods = cluster.together(reading, pods_on_node(cluster.api, name))
        return node, None, pods
    node, lease = cluster.together(reading, _lease(cluster.api, name))
    return node, lease, Listed([], "")


async def _lease(api: Api, node: str) -> Object | None:
    return await absent_ok(api.get(leases.lease_path(node)))


def _count(maintenance: m.Maintenance, node: Node, pods: Sequence[Pod], cluster: Cluster) -> tuple[Object, list[Pod]]:
    """Count the pods on the node and those that must leave by `spec.drain` (DRN-1a); also return the latter."""
    reason = m.spec_of(maintenance).get("reason") or ""
    name = node["metadata"]["name"]
    log_about("Applying maintenance mode", maintenance, reason=reason)
    log_about(f"Applying Maintenance mode on Node: {name} with Reason: {reason}", maintenance)
    options, gone = drain_flags.options_of(maintenance), cluster.run(orphans(cluster.api, pods))
    found = drain_flags.sorted_for(pods, options, datetime.now(timezone.utc), gone)
    if said := drain_flags.warned(found, options):
        log_about(f"WARNING: {said}", maintenance)
    return {"totalpods": len(pods), "evictionPods": len(found.leaving)}, found.leaving


def _looked(written: m.Maintenance, node: Node, left: list[Pod]) -> Looked:
    """Return the node and its remaining pods as a snapshot for `status`.

    `status` uses it instead of reading the cluster if the maintenance has not changed since `written`.
    """
    closed = is_closed(node, m.group(written).drain_taint)
    return Looked.at(written, is_closed=closed, left=left)


def acquire_lease(lease: Object | None, maintenance: m.Maintenance, node: Node, cluster: Cluster) -> None:
    """Acquire or renew the node's lease; `lease` is None if it was not read or did not exist.

    Raises `Failed` if another maintenance has the lease or the node. Raises `HeldByOther` if another tool has the
    lease, or if this maintenance had it and lost it. Raises `Retry` if the lease changes meanwhile.
    """
    name, now = node["metadata"]["name"], datetime.now(timezone.utc)
    wanted = leases.lease_of(name, maintenance, now)
    if lease is None:
        _check_not_taken(node, maintenance, cluster)
        lease = _created(wanted, name, cluster)
    if lease is None:
        return
    try:
        if not leases.is_holder(lease, maintenance):
            _check_available(lease, maintenance, name, now, cluster)
            _take_over(lease, wanted, cluster)
        elif leases.is_due(lease, now):
            _take_over(lease, wanted, cluster)
    except Conflict:
        raise Retry(f"the lease of node {name} changed while it was acquired") from None


def _check_not_taken(node: Node, maintenance: m.Maintenance, cluster: Cluster) -> None:
    """Check that no other maintenance has the node, in case a client deleted its lease. Raises `Failed` otherwise.

    The check costs a list request only if the node is labelled for another maintenance.
    """
    name, uid = node["metadata"]["name"], maintenance["metadata"]["uid"]
    if m.has_begun(maintenance) or labelled_for(node) in (None, uid):
        return
    for other in cluster.run(maintenances(cluster.api, name)):
        if other["metadata"]["uid"] != uid and m.has_node(other):
            raise Failed(_already_exists(name, other["metadata"]["name"], other["apiVersion"]))


def _created(wanted: Object, node: str, cluster: Cluster) -> Object | None:
    """Create the lease and return None, or return the existing lease. Raises `Retry` if that was just deleted."""
    try:
        cluster.create(leases.LEASES, wanted)
    except Conflict:
        found = cluster.run(_lease(cluster.api, node))
        if found is None:
            raise Retry(f"the lease of node {node} was released while it was acquired") from None
        return found
    return None


def _take_over(lease: Object, wanted: Object, cluster: Cluster) -> None:
    """Change the lease to `wanted`. Raises `Conflict` if it changed since it was read, `Retry` if it was deleted."""
    node = leases.node_of(lease)
    try:
        cluster.patch(leases.lease_path(node), leases.takeover_patch(lease, wanted))
    except NotFound:
        raise Retry(f"the lease of node {node} was released while it was acquired") from None


def _check_available(lease: Object, maintenance: m.Maintenance, node: str, now: datetime, cluster: Cluster) -> None:
    """Check that a lease with another holder may be acquired. Raises `Failed` or `HeldByOther` otherwise.

    A maintenance as the holder must be gone, released, or have lost the lease. Another tool must have released the
    lease or let it expire.
    """
    holder = leases.holder_of(lease)
    if holder is None:
        if not leases.is_free(lease, now):
            raise HeldByOther(f"the lease of node {node} is held by {lease['spec'].get('holderIdentity')}")
        return
    group = GROUPS.get(holder.api_version)
    found = cluster.run(absent_ok(cluster.api.get(f"{group.path}/{segment(holder.name)}"))) if group else None
    if found is not None and found["metadata"]["uid"] == holder.uid and m.claims_node(found):
        if m.has_begun(maintenance):
            raise HeldByOther(f"the lease of node {node} is held by {holder.name} ({holder.api_version})")
        raise Failed(_already_exists(node, holder.name, holder.api_version))


def _already_exists(node: str, other: str, api_version: str) -> str:
    return f"invalid nodeName, a NodeMaintenance for node {node} already exists: {other} ({api_version})"
