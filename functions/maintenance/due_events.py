"""Determines which event a maintenance waits for, from the objects that a tick has listed; sends no requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property

from eventing import events
from functions.maintenance.event_objects import NAME_PATTERN
from kube.maintenance import drain_flags, leases
from kube.maintenance import objects as m
from kube.maintenance.eviction_backoff import split_due_pods
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.nodes import Node, get_maintenance_uid, is_in_maintenance, is_labelled_for
from kube.paths import Object
from kube.pods import Pod, is_terminating
from kube.times import parse_time, parse_time_or_none

IN_FLIGHT_SECONDS = 5.0
"""Seconds for which an event counts as in flight.

Between two steps an event takes milliseconds, or seconds on a busy cluster.
"""
UNQUEUED_MAINTENANCES, QUEUE_SECONDS_EACH, MAX_QUEUE_SECONDS = 10, 0.3, 60.0
"""The expected queueing time grows by `QUEUE_SECONDS_EACH` for each active maintenance beyond `UNQUEUED_MAINTENANCES`.

The maximum is `MAX_QUEUE_SECONDS`. Re-emitting an event that is still queued would make the queue longer, until the
system collapses (rule 8).
"""


class RequiredRead(Enum):
    """Object that a tick must read, or could not read, to determine which event a maintenance waits for."""

    NODE = "the node, because it does not have the maintenance label"
    PODS = "the pods of the node"
    UNAVAILABLE = "an object that could not be read in time"


DueEvent = str | RequiredRead
"""The type of the due event, "" if no event is due, or the object that the tick must read first."""


@dataclass(frozen=True)
class ResyncSnapshot:
    """The lists that a tick reads.

    Attributes:
        maintenances: the maintenances of all API groups that could be listed.
        is_complete: whether all API groups could be listed.
        nodes: the nodes that carry our label, by name; None if the nodes could not be listed.
        leases: the nodes' leases, by the node's name; None if the leases could not be listed.
    """

    maintenances: list[Object]
    nodes: Mapping[str, Node] | None
    leases: Mapping[str, leases.Lease] | None
    is_complete: bool = True

    @cached_property
    def occupied_nodes(self) -> frozenset[str]:
        """Return the names of the nodes on which a maintenance has begun and has not lost the lease."""
        return frozenset(m.get_node_name(item) for item in self.maintenances if m.owns_node(item))

    @cached_property
    def queue_seconds(self) -> float:
        """Return the seconds for which an event may be queued, given the number of active maintenances."""
        active_count = sum(
            m.is_deleting(item) or m.get_phase(item) not in (m.SUCCEEDED, m.FAILED) for item in self.maintenances
        )
        return min(QUEUE_SECONDS_EACH * max(0, active_count - UNQUEUED_MAINTENANCES), MAX_QUEUE_SECONDS)


def find_orphans(snapshot: ResyncSnapshot) -> list[tuple[events.ObjectReference, str]]:
    """Return the orphaned nodes: those still cordoned, tainted or leased for a maintenance that no longer exists.

    Each node comes with a reference to that maintenance. Late writes and removed finalizers orphan nodes. A node is not
    orphaned if another maintenance waits to begin on it, or if its previous maintenance is about to restore it. The
    result is empty if a list is incomplete.
    """
    if not snapshot.is_complete or snapshot.nodes is None or snapshot.leases is None:
        return []
    claimed_nodes = {m.get_node_name(item) for item in snapshot.maintenances if m.claims_node(item)}
    lease_lost_uids = {
        item["metadata"]["uid"] for item in snapshot.maintenances if m.has_lost_lease(item) and not m.is_released(item)
    }
    holders = {name: holder for name, lease in snapshot.leases.items() if (holder := leases.parse_holder(lease))}
    references = {
        name: _build_label_reference(node)
        for name, node in snapshot.nodes.items()
        if get_maintenance_uid(node) not in lease_lost_uids
    }
    references |= {name: _build_reference(*holder) for name, holder in holders.items() if holder.api_version in GROUPS}
    return [(reference, name) for name, reference in sorted(references.items()) if name not in claimed_nodes]


def _build_label_reference(node: Node) -> events.ObjectReference:
    """Return a reference to the maintenance in the node's label, of which only the uid is known."""
    uid = get_maintenance_uid(node) or "-"
    return _build_reference(MEDIK8S.api_version, uid, uid)


def _build_reference(api_version: str, name: str, uid: str) -> events.ObjectReference:
    """Return a reference to a deleted maintenance, with the name "unknown" if `name` is not a valid object name.

    Any client may write labels and leases, so the name in a label or lease can be invalid.
    """
    return events.ObjectReference(api_version, name if NAME_PATTERN.fullmatch(name) else "unknown", uid)


def find_due_event(maintenance: m.Maintenance, snapshot: ResyncSnapshot, now: datetime) -> DueEvent:
    """Return the event that a maintenance waits for, or the read that is needed to determine the event."""
    if has_event_in_flight(maintenance, now, snapshot.queue_seconds):
        return events.MAINTENANCE_PENDING if _is_renewal_due(maintenance, snapshot, now) else ""
    if m.is_deleting(maintenance):
        return events.MAINTENANCE_RESTORE_PENDING if m.has_finalizer(maintenance) else ""
    if not (m.has_begun(maintenance) or m.get_phase(maintenance) or m.get_last_error(maintenance)):
        return events.MAINTENANCE_PENDING  # No step has processed the maintenance yet.
    if snapshot.nodes is None or snapshot.leases is None:
        return RequiredRead.UNAVAILABLE
    if m.has_lost_lease(maintenance):
        is_unrestored = is_labelled_for(
            snapshot.nodes.get(m.get_node_name(maintenance)), maintenance["metadata"]["uid"]
        )
        return events.MAINTENANCE_RESTORE_PENDING if is_unrestored else ""
    lease = snapshot.leases.get(m.get_node_name(maintenance))
    if not m.has_begun(maintenance) and not is_unblocked(maintenance, lease, snapshot, now):
        return ""
    node = snapshot.nodes.get(m.get_node_name(maintenance))
    return RequiredRead.NODE if node is None else find_due_event_on_node(maintenance, node, lease, now)


def _is_renewal_due(maintenance: m.Maintenance, snapshot: ResyncSnapshot, now: datetime) -> bool:
    """Return whether the maintenance holds a lease that is due for renewal.

    A renewal does not wait for events in flight. With many concurrent drains, status writes may follow each other so
    closely that an event always seems to be in flight.
    """
    lease = (snapshot.leases or {}).get(m.get_node_name(maintenance))
    is_active = m.has_begun(maintenance) and not m.is_deleting(maintenance)
    return (
        is_active and lease is not None and leases.is_holder(lease, maintenance) and leases.is_renewal_due(lease, now)
    )


def find_due_event_on_node(
    maintenance: m.Maintenance, node: Node | None, lease: leases.Lease | None, now: datetime
) -> DueEvent:
    """Return the event that a maintenance waits for, given its node (None if the node does not exist) and its lease."""
    if node is None:
        was_replaced = not m.has_begun(maintenance) and m.get_phase(maintenance) in (m.RUNNING, m.SUCCEEDED)
        # A replaced object has no owner reference, so it is not garbage-collected: `begin` reports the missing node.
        return events.MAINTENANCE_PENDING if was_replaced else ""
    if not m.has_begun(maintenance):
        return events.MAINTENANCE_PENDING
    if not m.has_begun_on(maintenance, node):
        return ""  # The original node was deleted, so the garbage collector deletes the maintenance.
    is_renewed = lease is not None and leases.is_holder(lease, maintenance) and not leases.is_renewal_due(lease, now)
    # `begin` renews the lease, clears the errors and restores the owner reference.
    if not is_renewed or m.get_lease_error_count(maintenance) or not m.has_node_owner(maintenance):
        return events.MAINTENANCE_PENDING
    if not is_in_maintenance(node, m.get_group(maintenance).drain_taint):
        return events.NODE_DRIFTED
    # `begin` clears an outdated renewal error.
    if m.get_phase(maintenance) == m.SUCCEEDED and m.get_last_error(maintenance):
        return events.MAINTENANCE_PENDING
    return RequiredRead.PODS


def find_due_event_by_pods(maintenance: m.Maintenance, pods: Iterable[Object], now: datetime) -> str:
    """Return `node.tainted` if a maintenance of a cordoned and tainted node waits for a pass of `evict`, else ""."""
    options, listed = drain_flags.parse_drain_options(maintenance), list(pods)
    orphans = drain_flags.find_reported_orphans(listed, m.get_blocked_pods(maintenance))
    classification = drain_flags.classify_for_drain(listed, options, now, orphans)
    if not classification.leaving:
        return "" if m.is_reported_drained(maintenance) else events.NODE_TAINTED
    if m.is_spec_changed(maintenance) or not drain_flags.are_refusals_reported(
        drain_flags.find_pods_blocked_by_flags(classification, options), maintenance
    ):
        return events.NODE_TAINTED
    to_evict, _ = split_due_pods(drain_flags.select_evictable_pods(classification, options), maintenance, now)
    if all(is_within_grace_period(pod, now) for pod in to_evict):
        # The drain waits until a pod is gone, a backoff ends (rule 9), or the administrator acts (DRN-1a).
        return events.NODE_TAINTED if m.is_reported_uncordoned(maintenance) else ""
    return events.NODE_TAINTED


def has_event_in_flight(maintenance: m.Maintenance, now: datetime, queue_seconds: float) -> bool:
    """Return whether the maintenance's events are still in flight, so that re-emitting them would double the work.

    After a status write, events count as in flight for `IN_FLIGHT_SECONDS` plus the queueing time. If the maintenance
    is new or being deleted, only the queueing time counts, since its first event may be lost. With few active
    maintenances, the first event is re-emitted immediately (X-3, X-5).
    """
    metadata, written = maintenance["metadata"], m.get_status(maintenance).get("lastUpdate")
    is_status_written = bool(written) and not m.is_deleting(maintenance)
    since = written if is_status_written else metadata.get("deletionTimestamp") or metadata.get("creationTimestamp")
    began, limit_seconds = parse_time_or_none(since), queue_seconds + (IN_FLIGHT_SECONDS if is_status_written else 0)
    return began is not None and 0 <= (now - began).total_seconds() < limit_seconds


def is_unblocked(
    maintenance: m.Maintenance, lease: leases.Lease | None, snapshot: ResyncSnapshot, now: datetime
) -> bool:
    """Return whether a maintenance that has not begun may begin: no other maintenance or tool holds its node or lease.

    The maintenance may hold the lease itself, if `begin` failed after acquiring the lease or a client removed the
    finalizer.
    If a client deleted the lease, the maintenance that holds the node acquires it again.
    """
    if lease is not None and leases.is_holder(lease, maintenance):
        return True
    if m.get_node_name(maintenance) in snapshot.occupied_nodes:
        return False
    holder = leases.parse_holder(lease) if lease else None
    if holder is None:  # The lease has no holder, or another tool holds it.
        return lease is None or leases.is_available(lease, now)
    return holder.uid not in {other["metadata"]["uid"] for other in snapshot.maintenances if m.claims_node(other)}


def is_within_grace_period(pod: Pod, now: datetime) -> bool:
    """Return whether the pod is terminating within its grace period, which ends at `deletionTimestamp`."""
    return is_terminating(pod) and now < parse_time(pod["metadata"]["deletionTimestamp"])
