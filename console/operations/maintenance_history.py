"""Summarizes the past and running maintenances in the journal's entries. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from eventing.events import MAINTENANCE_BEGUN, NODE_DRAINED, NODE_RESTORED, RESOURCE_DELETED, RESOURCE_TYPES
from eventing.journal.entries import Entry, get_object_identity
from eventing.journal.origins import Origin, read_origin
from kube.maintenance.objects import FAILED, RUNNING, SUCCEEDED
from kube.times import parse_time_or_none

HISTORY_EVENT_TYPES = (*RESOURCE_TYPES, MAINTENANCE_BEGUN, NODE_DRAINED, NODE_RESTORED)
"""Types of the events from which `read_history` reads the start, the end and the outcome of a maintenance."""
NODE_DELETED, DELETED, WAITING = "node deleted", "deleted", "Waiting"


@dataclass(frozen=True)
class RecordedMaintenance:
    """A maintenance in the journal.

    Attributes:
        first_arrival: The arrival of its first recorded event.
        drain_end: The arrival of the first event which reports that the drain has ended, None if there is none.
        end: The arrival of the first event which reports that the object is deleted or the node restored, or None.
    """

    uid: str
    name: str
    node: str
    first_arrival: datetime
    origin: Origin = field(default_factory=Origin)
    drain_end: datetime | None = None
    end: datetime | None = None

    @property
    def started(self) -> datetime:
        """Return when the object was created, or else when its first event was recorded."""
        return parse_time_or_none(self.origin.created) or self.first_arrival

    @property
    def outcome(self) -> str:
        """Return the outcome of the drain, or the phase of a drain that has not ended."""
        origin = self.origin
        if origin.phase in (SUCCEEDED, FAILED):
            return origin.phase
        if origin.has_drain_ended:
            return NODE_DELETED if origin.is_node_deleted else SUCCEEDED
        if origin.given_up:
            return ": ".join(filter(None, ("given up", origin.remaining_pods)))
        return DELETED if self.end else origin.phase or WAITING

    def compute_seconds(self, now: datetime) -> int:
        """Return how long the drain took, or how long it has been running until `now`, in seconds."""
        end = self.drain_end or parse_time_or_none(self.origin.deleted) or self.end or now
        return max(0, int((end - self.started).total_seconds()))

    def as_data(self, now: datetime) -> dict[str, Any]:
        """Return the maintenance as JSON data."""
        return {
            "uid": self.uid,
            "name": self.name,
            "node": self.node,
            "requestedBy": self.origin.requester,
            "reason": self.origin.reason,
            "endedBy": self.origin.ender,
            "started": self.started.isoformat(),
            "seconds": self.compute_seconds(now),
            "ended": self.end.isoformat() if self.end else "",
            "outcome": self.outcome,
        }


def read_history(entries: Iterable[Entry]) -> list[RecordedMaintenance]:
    """Return the maintenances that the entries are about, the newest first; `entries` are in order of arrival."""
    known: dict[str, RecordedMaintenance] = {}
    for entry in entries:
        uid, name = get_object_identity(entry.event)
        if entry.kind == "NodeMaintenance" and uid and entry.dead_letter is None:
            recorded = known.get(uid) or RecordedMaintenance(uid, name, entry.node, entry.arrived)
            known[uid] = _add_entry(recorded, entry)
    return sorted(known.values(), key=lambda recorded: recorded.started, reverse=True)


def _add_entry(recorded: RecordedMaintenance, entry: Entry) -> RecordedMaintenance:
    origin = read_origin(recorded.origin, entry.event)
    has_drain_ended = origin.has_drain_ended or origin.phase in (SUCCEEDED, FAILED)
    is_over = origin.deleted or entry.event.get_type() in (RESOURCE_DELETED, NODE_RESTORED)
    return replace(
        recorded,
        node=recorded.node or entry.node,
        origin=replace(origin, phase=origin.phase or (RUNNING if entry.event.get_type() == MAINTENANCE_BEGUN else "")),
        drain_end=recorded.drain_end or (entry.arrived if has_drain_ended else None),
        end=recorded.end or (entry.arrived if is_over else None),
    )
