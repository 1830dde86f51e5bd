"""Tests for the timeline diagram: its lanes, and the positions of events and attempts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from console.web.swimlanes import MAX_GAP_PIXELS, MIN_GAP_PIXELS, SIDE_MARGIN, TimeScale, build_diagram
from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.entries import Attempt, Entry

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid")


def build_time(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def build_entry(
    seq: int, event_type: str, step: str, offset_seconds: float, *functions: str, status: int = 200
) -> Entry:
    """Build the entry of an event that the function `step` emitted, with one attempt of each of these functions."""
    event = build_event(event_type, step, MAINTENANCE, "node-1", seed=str(seq))
    attempts = [
        Attempt(event.get_source(), event.get_id(), name, build_time(offset_seconds + 0.01), 0.02, status)
        for name in functions
    ]
    return Entry(seq, build_time(offset_seconds), event, tuple(attempts))


def test_gaps_in_time_scale_have_minimum_and_maximum_width() -> None:
    """Check that a long gap is drawn with the maximum width, and a very short gap with the minimum width."""
    time_scale = TimeScale([START, build_time(0.00001), build_time(3600)])

    assert time_scale(START) == SIDE_MARGIN
    assert time_scale(build_time(0.00001)) == SIDE_MARGIN + MIN_GAP_PIXELS
    assert time_scale(build_time(3600)) == time_scale.end == SIDE_MARGIN + MIN_GAP_PIXELS + MAX_GAP_PIXELS
    assert SIDE_MARGIN < time_scale(build_time(0.000005)) < SIDE_MARGIN + MIN_GAP_PIXELS
    assert time_scale.build_ticks()[-1].follows_gap


def test_lanes_are_in_order_of_steps() -> None:
    """Check that emitters and functions with attempts have lanes, in the order of a maintenance's steps."""
    diagram = build_diagram(
        [
            build_entry(1, events.MAINTENANCE_BEGUN, "begin", 0, "status", "cordon"),
            build_entry(2, events.NODE_CORDONED, "cordon", 1, "taint"),
        ]
    )

    assert diagram
    assert [name for name, _ in diagram.lanes] == ["begin", "cordon", "taint", "status"]
    assert [(bar.seq, bar.is_failed) for bar in diagram.attempts] == [(1, False), (1, False), (2, False)]
    assert len(diagram.lines) == 3
    assert all(SIDE_MARGIN <= bar.x <= bar.x + bar.width <= diagram.width for bar in diagram.attempts)


def test_failed_events_and_attempts_are_marked() -> None:
    diagram = build_diagram([build_entry(1, events.MAINTENANCE_STEP_FAILED, "begin", 0, "status", status=503)])

    assert diagram
    assert diagram.events[0].is_failed
    assert diagram.attempts[0].is_failed


def test_each_attempt_has_bar_and_line() -> None:
    """Check that each attempt has a bar and a line from its event, so that earlier failed attempts are visible."""
    event_entry = build_entry(1, events.NODE_TAINTED, "taint", 0, "evict")
    attempts = (
        replace(event_entry.attempts[0], at=build_time(at), status=status)
        for at, status in ((1, 503), (3, 503), (9, 200))
    )

    diagram = build_diagram([replace(event_entry, attempts=tuple(attempts))])

    assert diagram
    assert [bar.is_failed for bar in diagram.attempts] == [True, True, False]
    assert [(line.x2, line.y2) for line in diagram.lines] == [(bar.x, bar.y) for bar in diagram.attempts]


def test_event_is_drawn_before_its_attempts() -> None:
    """Check that an event is drawn before its attempts, even if it was recorded after them."""
    late_entry = build_entry(1, events.NODE_TAINTED, "taint", 5)
    early_attempt = Attempt("s", "e", "evict", build_time(1), 0.1, 200)

    diagram = build_diagram([Entry(1, late_entry.arrived, late_entry.event, (early_attempt,))])

    assert diagram
    assert diagram.events[0].x <= diagram.attempts[0].x


def test_no_diagram_is_built_without_events() -> None:
    assert build_diagram([]) is None


def test_time_labels_are_clock_times_in_utc() -> None:
    """Check that labels show the clock time in UTC with tenths of a second, wherever there is space for a label."""
    zone = timezone(timedelta(hours=2))
    time_scale = TimeScale([START.astimezone(zone), build_time(0.01), build_time(0.26), build_time(90)])

    assert [tick.text for tick in time_scale.build_ticks()] == ["00:00:00.0", "00:00:00.2", "00:01:30.0"]


def test_attempt_that_responded_with_failure_event_is_marked_with_reason() -> None:
    """X-6: an attempt is marked as failed if its function responded with status 200 and an event about the failure."""
    entry = build_entry(1, events.MAINTENANCE_BEGUN, "begin", 0, "cordon")
    reply = {"id": "1", "type": events.MAINTENANCE_STEP_FAILED, "data": {"step": "cordon", "error": "no permission"}}
    failed_attempt = replace(entry.attempts[0], replies=(reply,))

    diagram = build_diagram([replace(entry, attempts=(failed_attempt,))])

    assert diagram
    assert [(bar.is_failed, bar.title) for bar in diagram.attempts] == [
        (True, "cordon on maintenance.begun: 200 in 20 ms, cordon: no permission")
    ]
