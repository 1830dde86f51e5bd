"""Determines the state of each maintenance from the objects that `resync` has read; sends no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property

from kube.maintenance import drain_flags, escalation, leases
from kube.maintenance import objects as m
from kube.maintenance.blocked_pods import split_due_pods
from kube.nodes import Node, is_cordoned_and_tainted
from kube.paths import Object
from kube.pods import DrainOptions, Pod, PodClassification, is_terminating
from kube.times import parse_time, parse_time_or_none

IN_FLIGHT_SECONDS = 5.0
"""Seconds after a status write for which the maintenance's events count as in flight.

The delivery of an event takes milliseconds, or seconds on a busy cluster.
"""
UNQUEUED_MAINTENANCES, QUEUE_SECONDS_EACH, MAX_QUEUE_SECONDS = 10, 0.3, 60.0
"""The expected queueing time grows by `QUEUE_SECONDS_EACH` for each active maintenance beyond `UNQUEUED_MAINTENANCES`.

The maximum is `MAX_QUEUE_SECONDS`. Re-emitting events that are still queued would lengthen the queue without bound
(rule 8).
"""


class RequiredRead(Enum):
    """Object that `resync` must read, or could not read in time, to determine the state of a maintenance."""

    NODE = "the node, because it does not have the maintenance label"
    PODS = "the pods of the node"
    UNAVAILABLE = "an object that could not be read in time"


class ReadRequired(Exception):
    """Raised if the state of a maintenance depends on an object that `resync` has not read."""

    def __init__(self, read: RequiredRead) -> None:
        super().__init__(read.value)
        self.read = read


@dataclass(frozen=True)
class ResyncSnapshot:
    """The lists that `resync` reads.

    Attributes:
        maintenances: The maintenances of all API groups that could be listed.
        is_complete: Whether the maintenances of all API groups could be listed.
        nodes: The nodes with the maintenance label, by name; None if the nodes could not be listed.
        leases: The nodes' Leases, by node name; None if the Leases could not be listed.
    """

    maintenances: list[Object]
    nodes: Mapping[str, Node] | None
    leases: Mapping[str, leases.Lease] | None
    is_complete: bool = True

    @cached_property
    def owned_node_names(self) -> frozenset[str]:
        """Return the names of the nodes on which a maintenance has begun and has not lost the node's Lease."""
        return frozenset(m.get_node_name(item) for item in self.maintenances if m.owns_node(item))

    @cached_property
    def uids_of_owning_or_awaiting_maintenances(self) -> frozenset[str]:
        """Return the uids of the maintenances that hold their node, wait for it, or have yet to restore it."""
        return frozenset(item["metadata"]["uid"] for item in self.maintenances if m.owns_or_awaits_node(item))

    @cached_property
    def expected_queue_seconds(self) -> float:
        """Return the expected queueing time of an event, given the number of unfinished maintenances."""
        active_count = sum(
            m.is_deleting(item) or m.get_phase(item) not in (m.SUCCEEDED, m.FAILED) for item in self.maintenances
        )
        return min(QUEUE_SECONDS_EACH * max(0, active_count - UNQUEUED_MAINTENANCES), MAX_QUEUE_SECONDS)


@dataclass(frozen=True)
class Observation:
    """One maintenance, and the objects that `resync` has read about it.

    A property raises `ReadRequired` if it depends on an object that `resync` has not read.

    Attributes:
        read_node: The node, if a single read was necessary; None if the node does not exist.
        pods: The pods of the node.
    """

    maintenance: Object
    snapshot: ResyncSnapshot
    now: datetime
    read_node: Node | RequiredRead | None = RequiredRead.NODE
    pods: Sequence[Pod] | RequiredRead = RequiredRead.PODS

    @property
    def labelled_node(self) -> Node | None:
        """Return the node if it has the maintenance label, else None."""
        if self.snapshot.nodes is None or self.snapshot.leases is None:
            raise ReadRequired(RequiredRead.UNAVAILABLE)
        return self.snapshot.nodes.get(m.get_node_name(self.maintenance))

    @cached_property
    def node(self) -> Node | None:
        """Return the node, or None if it does not exist."""
        if (node := self.labelled_node) is not None:
            return node
        if isinstance(self.read_node, RequiredRead):
            raise ReadRequired(self.read_node)
        return self.read_node

    @cached_property
    def lease(self) -> leases.Lease | None:
        """Return the node's Lease, or None if it does not exist."""
        if self.snapshot.leases is None:
            raise ReadRequired(RequiredRead.UNAVAILABLE)
        return self.snapshot.leases.get(m.get_node_name(self.maintenance))

    @cached_property
    def has_begun(self) -> bool:
        """Return whether the maintenance has begun."""
        return m.has_begun(self.maintenance)

    @property
    def has_lost_metadata(self) -> bool:
        """Return whether another client removed the finalizer or the pod counts after the maintenance had begun."""
        return not self.has_begun and m.get_phase(self.maintenance) in (m.RUNNING, m.SUCCEEDED)

    @property
    def is_new(self) -> bool:
        """Return whether no step has processed the maintenance yet."""
        return not (self.has_begun or m.get_phase(self.maintenance) or m.get_last_error(self.maintenance))

    @cached_property
    def is_in_flight(self) -> bool:
        """Return whether events of the maintenance are probably in flight, so that `resync` must not re-emit them.

        After a status write, events count as in flight for `IN_FLIGHT_SECONDS` plus the expected queueing time. After a
        creation or deletion, only the expected queueing time counts. With few active maintenances, that time is 0, and
        `resync` re-emits the first event immediately (X-3, X-5).
        """
        metadata, written = self.maintenance["metadata"], m.get_status(self.maintenance).get("lastUpdate")
        is_status_written = bool(written) and not m.is_deleting(self.maintenance)
        since = written if is_status_written else metadata.get("deletionTimestamp") or metadata.get("creationTimestamp")
        limit_seconds = self.snapshot.expected_queue_seconds + (IN_FLIGHT_SECONDS if is_status_written else 0)
        began = parse_time_or_none(since)
        return began is not None and 0 <= (self.now - began).total_seconds() < limit_seconds

    @property
    def is_renewal_due_of_held_lease(self) -> bool:
        """Return whether the maintenance is active and holds a Lease that is due for renewal.

        A renewal must not wait until no event is in flight. With many concurrent drains, status writes follow each
        other so closely that an event always seems to be in flight.
        """
        is_active = self.has_begun and not m.is_deleting(self.maintenance) and self.snapshot.leases is not None
        return is_active and self.is_holder and self.is_renewal_due

    @property
    def has_unreported_escalation(self) -> bool:
        """Return whether the status of a running drain does not yet report its passed deadline or due escalation step.

        This property is also used while events are in flight, because in a fast drain, an event always seems to be.
        """
        is_draining = self.has_begun and not m.is_deleting(self.maintenance)
        is_running = is_draining and m.get_phase(self.maintenance) == m.RUNNING
        return is_running and escalation.has_unreported_escalation(self.maintenance, self.now)

    @cached_property
    def is_holder(self) -> bool:
        """Return whether the maintenance holds the node's Lease."""
        return self.lease is not None and leases.is_holder(self.lease, self.maintenance)

    @property
    def is_renewal_due(self) -> bool:
        """Return whether the node's Lease exists and is due for renewal."""
        return self.lease is not None and leases.is_renewal_due(self.lease, self.now)

    @property
    def may_maintenance_begin(self) -> bool:
        """Return whether no other maintenance or tool holds the node or its Lease.

        The maintenance itself may hold the Lease, if `begin` failed after acquiring it, or if a client removed the
        finalizer. If a client deleted the Lease of another maintenance's node, that other maintenance still holds the
        node.
        """
        if self.is_holder:
            return True
        if m.get_node_name(self.maintenance) in self.snapshot.owned_node_names:
            return False
        holder = leases.parse_holder(self.lease) if self.lease else None
        if holder is None:  # The lease has no holder, or another tool holds it.
            return self.lease is None or leases.is_available(self.lease, self.now)
        return holder.uid not in self.snapshot.uids_of_owning_or_awaiting_maintenances

    @property
    def has_cordoned_and_tainted_node(self) -> bool:
        """Return whether the node exists and is cordoned and tainted."""
        return self.node is not None and is_cordoned_and_tainted(self.node, m.get_group(self.maintenance).drain_taint)

    @cached_property
    def drain_options(self) -> DrainOptions:
        """Return the drain options of the maintenance."""
        return drain_flags.parse_drain_options(self.maintenance)

    @cached_property
    def classification(self) -> PodClassification:
        """Return the node's pods, classified by how the drain handles them."""
        if isinstance(self.pods, RequiredRead):
            raise ReadRequired(self.pods)
        orphans = drain_flags.find_reported_orphan_uids(self.pods, m.get_blocked_pods(self.maintenance))
        return drain_flags.classify_for_drain(self.pods, self.drain_options, self.now, orphans)

    @property
    def has_unreported_spec(self) -> bool:
        """Return whether the status does not yet reflect the spec, or lacks a pod that `spec.drain` blocks."""
        refusals = drain_flags.find_pods_blocked_by_flags(self.classification, self.drain_options)
        return m.is_spec_changed(self.maintenance) or not drain_flags.are_refusals_reported(refusals, self.maintenance)

    @property
    def is_waiting(self) -> bool:
        """Return whether all remaining pods terminate, are in backoff, or are blocked by `spec.drain`.

        A terminating pod counts until its `deletionTimestamp`, the end of its grace period, unless the escalation
        shortens that period.
        """
        evictable = drain_flags.select_evictable_pods(self.classification, self.drain_options)
        due_pods, backing_off = split_due_pods(evictable, self.maintenance, self.now)
        permitted = drain_flags.select_permitted_pods(self.classification, self.drain_options)
        return not escalation.select_pods_to_delete(self.maintenance, permitted, backing_off, self.now) and all(
            is_terminating(pod) and self.now < parse_time(pod["metadata"]["deletionTimestamp"]) for pod in due_pods
        )
