"""Determines which event a maintenance waits for, from what a tick has listed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property

from eventing import events
from functions.maintenance.event_objects import NAME
from kube.maintenance import drain_flags, leases
from kube.maintenance import objects as m
from kube.maintenance.eviction_backoff import parted
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.nodes import Node, in_maintenance, is_labelled_for, labelled_for
from kube.paths import Object
from kube.pods import Pod, is_terminating
from kube.times import moment, moment_or_none

UNDER_WAY_SECONDS = 5.0
"""Seconds for which an event counts as in flight.

Between two steps an event takes milliseconds, or seconds on a busy cluster.
"""
FEW, SECONDS_EACH, LONGEST_QUEUE = 10, 0.3, 60.0
"""Each active maintenance beyond `FEW` adds `SECONDS_EACH` to the expected queueing time, up to `LONGEST_QUEUE`.

Emitting an event again while the first one is queued would make the queue longer, until the system collapses (rule 8).
"""


class Look(Enum):
    """What a tick must still read, or failed to read, before it knows which event a maintenance waits for."""

    NODE = "its node, which does not carry the label"
    PODS = "the pods of its node"
    LATER = "what could not be had: no answer, or none in time"


Due = str | Look
"""The type of an event, "" for none, or what the tick must read first."""


@dataclass(frozen=True)
class Known:
    """The lists that a tick reads.

    Attributes:
        items: the maintenances of all API groups that could be listed.
        whole: whether all API groups could be listed.
        nodes: the nodes that carry our label, by name; None if they could not be listed.
        leases: the nodes' leases, by the node's name; None if they could not be listed.
    """

    items: list[Object]
    nodes: Mapping[str, Node] | None
    leases: Mapping[str, leases.Lease] | None
    whole: bool = True

    @cached_property
    def taken(self) -> frozenset[str]:
        """Return the names of the nodes on which a maintenance has begun and has not lost the lease."""
        return frozenset(m.node_name(item) for item in self.items if m.has_node(item))

    @cached_property
    def queue_seconds(self) -> float:
        """Return how many seconds an event may be queued after the events of all other active maintenances."""
        at_work = sum(m.is_deleting(item) or m.phase(item) not in (m.SUCCEEDED, m.FAILED) for item in self.items)
        return min(SECONDS_EACH * max(0, at_work - FEW), LONGEST_QUEUE)


def strays(known: Known) -> list[tuple[events.Reference, str]]:
    """Return the orphaned nodes: a maintenance that is gone left them cordoned, tainted or leased.

    Each comes with a reference to that maintenance. A late write or a removed finalizer causes this. A node is not
    orphaned if another maintenance waits to begin on it, or if its last one is about to restore it. The result is empty
    if a list is incomplete.
    """
    if not known.whole or known.nodes is None or known.leases is None:
        return []
    answered = {m.node_name(item) for item in known.items if m.claims_node(item)}
    given_up = {item["metadata"]["uid"] for item in known.items if m.has_given_up(item) and not m.is_over(item)}
    held = {name: holder for name, lease in known.leases.items() if (holder := leases.holder_of(lease))}
    left = {name: _unknown(node) for name, node in known.nodes.items() if labelled_for(node) not in given_up}
    left |= {name: _reference(*holder) for name, holder in held.items() if holder.api_version in GROUPS}
    return [(reference, name) for name, reference in sorted(left.items()) if name not in answered]


def _unknown(node: Node) -> events.Reference:
    """Return a reference to the maintenance in the node's label; the uid is all that is known about it."""
    uid = labelled_for(node) or "-"
    return _reference(MEDIK8S.api_version, uid, uid)


def _reference(api_version: str, name: str, uid: str) -> events.Reference:
    """Return a reference to a maintenance that is gone, named "unknown" if no object can have the name.

    Any client may write labels and leases, so they can contain an invalid name.
    """
    return events.Reference(api_version, name if NAME.fullmatch(name) else "unknown", uid)


def due(item: m.Maintenance, known: Known, now: datetime) -> Due:
    """Return what this maintenance waits for, as far as the lists show it."""
    if is_under_way(item, now, known.queue_seconds):
        return events.MAINTENANCE_FOUND if _is_lease_due(item, known, now) else ""
    if m.is_deleting(item):
        return events.MAINTENANCE_ENDED if m.has_finalizer(item) else ""
    if not (m.has_begun(item) or m.phase(item) or m.last_error(item)):
        return events.MAINTENANCE_FOUND  # no step has acted on it
    if known.nodes is None or known.leases is None:
        return Look.LATER
    if m.has_given_up(item):
        is_left = is_labelled_for(known.nodes.get(m.node_name(item)), item["metadata"]["uid"])
        return events.MAINTENANCE_ENDED if is_left else ""
    lease = known.leases.get(m.node_name(item))
    if not m.has_begun(item) and not is_free(item, lease, known, now):
        return ""
    node = known.nodes.get(m.node_name(item))
    return Look.NODE if node is None else due_on(item, node, lease, now)


def _is_lease_due(item: m.Maintenance, known: Known, now: datetime) -> bool:
    """Return whether the maintenance holds a lease that is due for renewal.

    With many concurrent drains, the events of one may be in flight for longer than a lease lasts.
    """
    lease = (known.leases or {}).get(m.node_name(item))
    is_active = m.has_begun(item) and not m.is_deleting(item)
    return is_active and lease is not None and leases.is_holder(lease, item) and leases.is_due(lease, now)


def due_on(item: m.Maintenance, node: Node | None, lease: leases.Lease | None, now: datetime) -> Due:
    """Return what a maintenance on this node waits for; `node` is None if the node does not exist."""
    if node is None:
        was_begun = not m.has_begun(item) and m.phase(item) in (m.RUNNING, m.SUCCEEDED)
        # a replaced object has no owner reference, so it is not garbage-collected: `begin` reports the missing node
        return events.MAINTENANCE_FOUND if was_begun else ""
    if not m.has_begun(item):
        return events.MAINTENANCE_FOUND
    if not m.began_on(item, node):
        return ""  # its original node is gone: the garbage collector deletes the maintenance
    is_renewed = lease is not None and leases.is_holder(lease, item) and not leases.is_due(lease, now)
    if not is_renewed or m.lease_errors(item) or not m.is_owned(item):  # `begin` clears errors
        return events.MAINTENANCE_FOUND
    if not in_maintenance(node, m.group(item).drain_taint):
        return events.NODE_DRIFTED
    if m.phase(item) == m.SUCCEEDED and m.last_error(item):  # outdated renewal error: `begin` clears it
        return events.MAINTENANCE_FOUND
    return Look.PODS


def due_by(item: m.Maintenance, pods: Iterable[Object], now: datetime) -> str:
    """Return what a maintenance of a cordoned and tainted node waits for: the next pass over its pods, or nothing."""
    options, listed = drain_flags.options_of(item), list(pods)
    orphans = drain_flags.known_orphans(listed, m.blocked_pods(item))
    found = drain_flags.sorted_for(listed, options, now, orphans)
    if not found.leaving:
        return "" if m.is_told_drained(item) else events.NODE_TAINTED
    if m.is_changed(item) or not drain_flags.are_told(drain_flags.refused(found, options), item):
        return events.NODE_TAINTED
    to_evict, _ = parted(drain_flags.going(found, options), item, now)
    if all(is_ending(pod, now) for pod in to_evict):
        # wait until PodSource reports a pod as gone, a backoff ends (rule 9), or the administrator acts (DRN-1a)
        return events.NODE_TAINTED if m.is_told_open(item) else ""
    return events.NODE_TAINTED


def is_under_way(item: m.Maintenance, now: datetime, queue_seconds: float) -> bool:
    """Return whether its events are still in flight, so that emitting them again would double the work.

    That is the case for some seconds after a status write. A maintenance that is new or being deleted waits only for
    the queue, since its first event may be lost. With few active maintenances, its event is emitted at once (X-3, X-5).
    """
    metadata, written = item["metadata"], m.status_of(item).get("lastUpdate")
    at_work = bool(written) and not m.is_deleting(item)
    since = written if at_work else metadata.get("deletionTimestamp") or metadata.get("creationTimestamp")
    began, window = moment_or_none(since), queue_seconds + (UNDER_WAY_SECONDS if at_work else 0)
    return began is not None and 0 <= (now - began).total_seconds() < window


def is_free(item: m.Maintenance, lease: leases.Lease | None, known: Known, now: datetime) -> bool:
    """Return whether a maintenance that has not begun may begin: no other maintenance or tool has its node or lease.

    The maintenance may hold the lease itself, if `begin` failed after acquiring it or a client removed the finalizer.
    If a client deleted the lease, the maintenance that has the node acquires it again.
    """
    if lease is not None and leases.is_holder(lease, item):
        return True
    if m.node_name(item) in known.taken:
        return False
    holder = leases.holder_of(lease) if lease else None
    if holder is None:  # no holder, or another tool
        return lease is None or leases.is_free(lease, now)
    return holder.uid not in {other["metadata"]["uid"] for other in known.items if m.claims_node(other)}


def is_ending(pod: Pod, now: datetime) -> bool:
    """Return whether the pod is terminating within its grace period, which ends at `deletionTimestamp`."""
    return is_terminating(pod) and now < moment(pod["metadata"]["deletionTimestamp"])
