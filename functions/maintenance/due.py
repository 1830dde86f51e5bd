"""Which event a maintenance waits for, by what a tick knows of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property

from eventing import events
from functions.maintenance.subject import NAME
from kube.maintenance import drain_flags, leases
from kube.maintenance import objects as m
from kube.maintenance.eviction_pauses import parted
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.nodes import Node, in_maintenance, is_labelled_for, labelled_for
from kube.paths import Object
from kube.pods import Pod, is_terminating
from kube.times import moment, moment_or_none

UNDER_WAY_SECONDS = 5.0
"""From step to step an event takes milliseconds, on a busy cluster seconds; until then it counts as under way."""
FEW, SECONDS_EACH, LONGEST_QUEUE = 10, 0.3, 60.0
"""Of more maintenances at work than a few each waits for the others: so many seconds longer for each, up to a minute.
An event that is emitted again while the first one is queued makes the queue longer, up to collapse (rule 9)."""


class Look(Enum):
    """Why the event is not known yet: what has to be looked at first."""

    NODE = "its node, which does not carry the label"
    PODS = "the pods of its node"
    LATER = "what could not be had: no answer, or none in time"


Due = str | Look
"""The type of an event, "" for none, or what has to be looked at first."""


@dataclass(frozen=True)
class Known:
    """What a tick lists.

    Attributes:
        items: all maintenances.
        whole: whether those are all; no, when one group could not be listed.
        nodes: the nodes that carry our label, by name; None when they could not be listed.
        leases: the leases of nodes, by name; None when they could not be listed.
    """

    items: list[Object]
    nodes: Mapping[str, Node] | None
    leases: Mapping[str, leases.Lease] | None
    whole: bool = True

    @cached_property
    def taken(self) -> frozenset[str]:
        """The nodes, by name, that a maintenance has: it has begun on them."""
        return frozenset(m.node_name(item) for item in self.items if m.has_node(item))

    @cached_property
    def queue_seconds(self) -> float:
        """How long an event may wait for its turn behind those of all other maintenances that are at work."""
        at_work = sum(m.is_deleting(item) or m.phase(item) not in (m.SUCCEEDED, m.FAILED) for item in self.items)
        return min(SECONDS_EACH * max(0, at_work - FEW), LONGEST_QUEUE)


def strays(known: Known) -> list[tuple[events.Reference, str]]:
    """The nodes, by name, that a maintenance left closed or leased which is gone, each with what is known of it.

    A late write, or an object whose finalizer somebody took off, leaves them. A node whose next maintenance waits to
    begin, or whose last one is about to give it back, is none.
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
    """The maintenance that a node is labelled for: of what is gone, its uid is all that there is to know."""
    uid = labelled_for(node) or "-"
    return _reference(MEDIK8S.api_version, uid, uid)


def _reference(api_version: str, name: str, uid: str) -> events.Reference:
    """What nobody answers for; labels and leases are anybody's to write, also with a name that no object can have."""
    return events.Reference(api_version, name if NAME.fullmatch(name) else "unknown", uid)


def due(item: m.Maintenance, known: Known, now: datetime) -> Due:
    """What this maintenance waits for, as far as the lists tell."""
    if is_under_way(item, now, known.queue_seconds):
        return events.MAINTENANCE_FOUND if _is_lease_due(item, known, now) else ""
    if m.is_deleting(item):
        return events.MAINTENANCE_ENDED if m.has_finalizer(item) else ""
    if not (m.has_begun(item) or m.phase(item) or m.last_error(item)):
        return events.MAINTENANCE_FOUND  # nobody tried
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
    """Whether its lease is to be renewed: beside many others a drain may be under way for longer than a lease lasts."""
    lease = (known.leases or {}).get(m.node_name(item))
    is_active = m.has_begun(item) and not m.is_deleting(item)
    return is_active and lease is not None and leases.is_holder(lease, item) and leases.is_due(lease, now)


def due_on(item: m.Maintenance, node: Node | None, lease: leases.Lease | None, now: datetime) -> Due:
    """What one waits for that may begin, or has begun, on this node (None: there is none)."""
    if node is None:
        was_begun = not m.has_begun(item) and m.phase(item) in (m.RUNNING, m.SUCCEEDED)
        return events.MAINTENANCE_FOUND if was_begun else ""  # replaced, it has no owner to end it: begin says so
    if not m.has_begun(item):
        return events.MAINTENANCE_FOUND
    if not m.began_on(item, node):
        return ""  # its own node is gone: the garbage collector ends it
    is_renewed = lease is not None and leases.is_holder(lease, item) and not leases.is_due(lease, now)
    if not is_renewed or m.lease_errors(item) or not m.is_owned(item):  # errors of a lease that is ours again: old news
        return events.MAINTENANCE_FOUND
    if not in_maintenance(node, m.group(item).drain_taint):
        return events.NODE_DRIFTED
    if m.phase(item) == m.SUCCEEDED and m.last_error(item):  # of a renewal; told late it is over, and begin says so
        return events.MAINTENANCE_FOUND
    return Look.PODS


def due_by(item: m.Maintenance, pods: Iterable[Object], now: datetime) -> str:
    """What one waits for whose node is as it should be: the next look at its pods, or nothing."""
    options, listed = drain_flags.options_of(item), list(pods)
    orphans = drain_flags.known_orphans(listed, m.blocked_pods(item))
    found = drain_flags.sorted_for(listed, options, now, orphans)
    if not found.leaving:
        return "" if m.is_told_drained(item) else events.NODE_TAINTED
    if m.is_changed(item) or not drain_flags.are_told(drain_flags.refused(found, options), item):
        return events.NODE_TAINTED
    to_evict, _ = parted(drain_flags.going(found, options), item, now)
    if all(is_ending(pod, now) for pod in to_evict):
        # nothing until one is gone, which PodSource emits, one has rested (rule 9), or a person acts (DRN-1a)
        return events.NODE_TAINTED if m.is_told_open(item) else ""
    return events.NODE_TAINTED


def is_under_way(item: m.Maintenance, now: datetime, queue_seconds: float) -> bool:
    """Whether its events are on their way, and others would double the work: its status was written a moment ago.

    One that is new, or being deleted, waits for its turn alone: its first event may be lost, and where few are at work
    it is emitted at once (X-3, X-5).
    """
    metadata, written = item["metadata"], m.status_of(item).get("lastUpdate")
    at_work = bool(written) and not m.is_deleting(item)
    since = written if at_work else metadata.get("deletionTimestamp") or metadata.get("creationTimestamp")
    began, window = moment_or_none(since), queue_seconds + (UNDER_WAY_SECONDS if at_work else 0)
    return began is not None and 0 <= (now - began).total_seconds() < window


def is_free(item: m.Maintenance, lease: leases.Lease | None, known: Known, now: datetime) -> bool:
    """Whether what was in the way of one that has not begun is gone: nobody else has the node or its lease any more.

    It may be the holder itself: what came after the lease failed, or somebody took the finalizer off. A lease that
    somebody deleted is acquired again by the one that has the node.
    """
    if lease is not None and leases.is_holder(lease, item):
        return True
    if m.node_name(item) in known.taken:
        return False
    holder = leases.holder_of(lease) if lease else None
    if holder is None:  # nobody's, or another tool's
        return lease is None or leases.is_free(lease, now)
    return holder.uid not in {other["metadata"]["uid"] for other in known.items if m.claims_node(other)}


def is_ending(pod: Pod, now: datetime) -> bool:
    """Whether it is being deleted and has time left to end; `deletionTimestamp` is the end of that time."""
    return is_terminating(pod) and now < moment(pod["metadata"]["deletionTimestamp"])
