"""Tests for estimating a drain's duration from recorded drains."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from console.operations.finished_drains import find_finished_drains
from console.operations.recorded_drains import RecordedDrain, RecordedEstimate, estimate_from_drains
from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.entries import Entry

START_TIME = datetime(2026, 3, 1, tzinfo=timezone.utc)


def build_entry(event_type: str, uid: str, seconds: float, node: str = "node-1") -> Entry:
    reference = ObjectReference("nodemaintenance.medik8s.io/v1beta1", f"nm-{uid}", uid)
    event = build_event(event_type, "begin", reference, node)
    return Entry(int(seconds * 10), START_TIME + timedelta(seconds=seconds), event)


def test_drain_duration_is_from_begun_event_to_first_drained_event() -> None:
    """Check that repeated events do not count, and that drains without a begin or end event are omitted."""
    begun, drained = events.MAINTENANCE_BEGUN, events.NODE_DRAINED
    entries = [
        build_entry(drained, "pruned", 0),
        build_entry(begun, "a", 1),
        build_entry(begun, "b", 2, "node-2"),
        build_entry(begun, "unfinished", 3),
        build_entry(drained, "b", 12, "node-2"),
        build_entry(begun, "a", 20),
        build_entry(drained, "a", 31),
        build_entry(drained, "a", 99),
    ]

    assert find_finished_drains(entries) == [RecordedDrain("node-2", 10), RecordedDrain("node-1", 30)]


def test_drains_of_same_node_take_precedence() -> None:
    """Check that the estimate is the median of the node's own drains, or else of all other drains."""
    drains = [RecordedDrain("node-1", seconds) for seconds in (10, 20, 600)] + [RecordedDrain("node-2", 90)]

    assert estimate_from_drains(drains, ["node-1"]) == RecordedEstimate(20, 3, "node-1")
    assert estimate_from_drains(drains, ["node-3"]) == RecordedEstimate(55, 4, "")
    assert estimate_from_drains([], ["node-1"]) is None


def test_slowest_node_determines_estimate_of_several_nodes() -> None:
    drains = [RecordedDrain("node-1", 0.2), RecordedDrain("node-2", 90)]

    estimate = estimate_from_drains(drains, ["node-1", "node-2"])

    assert estimate == RecordedEstimate(90, 1, "node-2")
    assert estimate.format_source() == "1 recorded drain of node-2"
    assert estimate_from_drains(drains[:1], ["node-1"]) == RecordedEstimate(1, 1, "node-1")
