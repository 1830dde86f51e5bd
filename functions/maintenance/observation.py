"""What a tick has read about the maintenances, and what follows from it for each maintenance; sends no requests."""

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
"""Seconds for which an event counts as in flight.

Between two steps an event takes milliseconds, or seconds on a busy cluster.
"""
UNQUEUED_MAINTENANCES, QUEUE_SECONDS_EACH, MAX_QUEUE_SECONDS = 10, 0.3, 60.0
"""The expected queueing time grows by `QUEUE_SECONDS_EACH` for each active maintenance beyond `UNQUEUED_MAINTENANCES`.

The maximum is `MAX_QUEUE_SECONDS`. Re-emitting an event that is still queued would make the queue longer, until the
system collapses (rule 8).
"""


class RequiredRead(Enum):
    """Object that a tick must read, or could not read, to determine the state of a maintenance."""

    NODE = "the node, because it does not have the maintenance label"
    PODS = "the pods of the node"
    UNAVAILABLE = "an object that could not be read in time"


class ReadRequired(Exception):
    """Raised if the state of a maintenance depends on an object that the tick has not read."""

    def __init__(self, read: RequiredRead) -> None:
        super().__init__(read.value)
        self.read = read


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
    def claiming_uids(self) -> frozenset[str]:
        """Return the uids of the maintenances that own their node, wait for it, or are about to restore it."""
        return frozenset(item["metadata"]["uid"] for item in self.maintenances if m.claims_node(item))

    @cached_property
    def queue_seconds(self) -> float:
        """Return the seconds for which an event may be queued, given the number of active maintenances."""
        active_count = sum(
            m.is_deleting(item) or m.get_phase(item) not in (m.SUCCEEDED, m.FAILED) for item in self.maintenances
        )
        return min(QUEUE_SECONDS_EACH * max(0, active_count - UNQUEUED_MAINTENANCES), MAX_QUEUE_SECONDS)


@dataclass(frozen=True)
class Observation:
    """One maintenance, and the objects that a tick has read about it.

    A property that depends on an object which the tick has not read raises `ReadRequired`.

    Attributes:
        read_node: the node if it was read in addition to the lists; None if it does not exist.
        pods: the pods of the node.
    """

    maintenance: Object
    snapshot: ResyncSnapshot
    now: datetime
    read_node: Node | RequiredRead | None = RequiredRead.NODE
    pods: Sequence[Pod] | RequiredRead = RequiredRead.PODS

    @property
    def labelled_node(self) -> Node | None:
        """Return the node if it has the maintenance label."""
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
        """Return the node's lease."""
        if self.snapshot.leases is None:
            raise ReadRequired(RequiredRead.UNAVAILABLE)
        return self.snapshot.leases.get(m.get_node_name(self.maintenance))

    @cached_property
    def has_begun(self) -> bool:
        """Return whether the maintenance has begun."""
        return m.has_begun(self.maintenance)

    @property
    def was_replaced(self) -> bool:
        """Return whether another client removed the finalizer or the counts after the maintenance had begun."""
        return not self.has_begun and m.get_phase(self.maintenance) in (m.RUNNING, m.SUCCEEDED)

    @property
    def is_new(self) -> bool:
        """Return whether no step has processed the maintenance yet."""
        return not (self.has_begun or m.get_phase(self.maintenance) or m.get_last_error(self.maintenance))

    @cached_property
    def is_in_flight(self) -> bool:
        """Return whether events of the maintenance are in flight, so that re-emitting them would double the work.

        After a status write, events count as in flight for `IN_FLIGHT_SECONDS` plus the queueing time. If the
        maintenance is new or being deleted, only the queueing time counts, since its first event may be lost. With few
        active maintenances, the first event is re-emitted immediately (X-3, X-5).
        """
        metadata, written = self.maintenance["metadata"], m.get_status(self.maintenance).get("lastUpdate")
        is_status_written = bool(written) and not m.is_deleting(self.maintenance)
        since = written if is_status_written else metadata.get("deletionTimestamp") or metadata.get("creationTimestamp")
        limit_seconds = self.snapshot.queue_seconds + (IN_FLIGHT_SECONDS if is_status_written else 0)
        began = parse_time_or_none(since)
        return began is not None and 0 <= (self.now - began).total_seconds() < limit_seconds

    @property
    def is_renewal_due_in_flight(self) -> bool:
        """Return whether the maintenance is active and holds a lease that is due for renewal.

        A renewal does not wait for events in flight. With many concurrent drains, status writes may follow each other
        so closely that an event always seems to be in flight.
        """
        is_active = self.has_begun and not m.is_deleting(self.maintenance) and self.snapshot.leases is not None
        return is_active and self.is_holder and self.is_renewal_due

    @property
    def is_overdue_unreported(self) -> bool:
        """Return whether the status of a running drain lacks the passed deadline, or the due step of the escalation.

        In a drain that progresses quickly, an event always seems to be in flight.
        """
        is_draining = self.has_begun and not m.is_deleting(self.maintenance)
        is_running = is_draining and m.get_phase(self.maintenance) == m.RUNNING
        return is_running and escalation.is_overdue_unreported(self.maintenance, self.now)

    @cached_property
    def is_holder(self) -> bool:
        """Return whether the maintenance holds the node's lease."""
        return self.lease is not None and leases.is_holder(self.lease, self.maintenance)

    @property
    def is_renewal_due(self) -> bool:
        """Return whether the node's lease exists and is due for renewal."""
        return self.lease is not None and leases.is_renewal_due(self.lease, self.now)

    @property
    def may_begin(self) -> bool:
        """Return whether no other maintenance or tool holds the node or its lease.

        The maintenance may hold the lease itself, if `begin` failed after acquiring the lease or a client removed the
        finalizer. If a client deleted the lease, the maintenance that holds the node acquires it again.
        """
        if self.is_holder:
            return True
        if m.get_node_name(self.maintenance) in self.snapshot.occupied_nodes:
            return False
        holder = leases.parse_holder(self.lease) if self.lease else None
        if holder is None:  # The lease has no holder, or another tool holds it.
            return self.lease is None or leases.is_available(self.lease, self.now)
        return holder.uid not in self.snapshot.claiming_uids

    @property
    def is_closed(self) -> bool:
        """Return whether the node exists and is cordoned and tainted."""
        return self.node is not None and is_cordoned_and_tainted(self.node, m.get_group(self.maintenance).drain_taint)

    @cached_property
    def drain_options(self) -> DrainOptions:
        """Return the drain options of the maintenance."""
        return drain_flags.parse_drain_options(self.maintenance)

    @cached_property
    def classification(self) -> PodClassification:
        """Return the node's pods by what the drain does with them."""
        if isinstance(self.pods, RequiredRead):
            raise ReadRequired(self.pods)
        orphans = drain_flags.find_reported_orphans(self.pods, m.get_blocked_pods(self.maintenance))
        return drain_flags.classify_for_drain(self.pods, self.drain_options, self.now, orphans)

    @property
    def is_spec_unreported(self) -> bool:
        """Return whether the spec is newer than the status, or the status lacks a pod that `spec.drain` blocks."""
        refusals = drain_flags.find_pods_blocked_by_flags(self.classification, self.drain_options)
        return m.is_spec_changed(self.maintenance) or not drain_flags.are_refusals_reported(refusals, self.maintenance)

    @property
    def is_waiting(self) -> bool:
        """Return whether no pod may be evicted before a pod is gone, a backoff ends, or the administrator acts.

        A terminating pod is within its grace period until `deletionTimestamp`, unless the escalation shortens the
        period.
        """
        evictable = drain_flags.select_evictable_pods(self.classification, self.drain_options)
        due_pods, backing_off = split_due_pods(evictable, self.maintenance, self.now)
        permitted = drain_flags.select_permitted_pods(self.classification, self.drain_options)
        return not escalation.select_deletions(self.maintenance, permitted, backing_off, self.now) and all(
            is_terminating(pod) and self.now < parse_time(pod["metadata"]["deletionTimestamp"]) for pod in due_pods
        )
