"""Unit tests of the timeline diagram: the lanes, and the positions of events and attempts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from console.web.swimlanes import LEAST, LEFT, MOST, Scale, draw, seconds
from eventing import events
from eventing.events import Reference, event
from eventing.journal.entries import Attempt, Entry

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
MAINTENANCE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid")


def after(value: float) -> datetime:
    return START + timedelta(seconds=value)


def entry(seq: int, kind: str, step: str, at: float, *functions: str, status: int = 200) -> Entry:
    """Build an entry of an event that `step` emitted, with one attempt of each of these functions."""
    emitted = event(kind, step, MAINTENANCE, "node-1", seed=str(seq))
    made = [Attempt(emitted.get_source(), emitted.get_id(), name, after(at + 0.01), 0.02, status) for name in functions]
    return Entry(seq, after(at), emitted, tuple(made))


def test_a_wait_is_drawn_short_and_a_burst_wide_enough() -> None:
    """Check that a long wait is drawn with the maximum width and a very short delay with the minimum width."""
    scale = Scale([START, after(0.00001), after(3600)])

    assert scale(START) == LEFT
    assert scale(after(0.00001)) == LEFT + LEAST
    assert scale(after(3600)) == scale.end == LEFT + LEAST + MOST
    assert LEFT < scale(after(0.000005)) < LEFT + LEAST
    assert scale.ticks()[-1].wait


def test_every_function_has_a_lane_in_the_order_of_a_maintenance() -> None:
    """Check that emitters and functions with attempts have lanes, in the order of a maintenance."""
    picture = draw(
        [
            entry(1, events.MAINTENANCE_BEGUN, "begin", 0, "status", "cordon"),
            entry(2, events.NODE_CORDONED, "cordon", 1, "taint"),
        ]
    )

    assert picture
    assert [name for name, _ in picture.lanes] == ["begin", "cordon", "taint", "status"]
    assert [(bar.seq, bar.bad) for bar in picture.attempts] == [(1, False), (1, False), (2, False)]
    assert len(picture.lines) == 3
    assert all(LEFT <= bar.x <= bar.x + bar.width <= picture.width for bar in picture.attempts)


def test_what_failed_is_marked() -> None:
    picture = draw([entry(1, events.MAINTENANCE_FAILED, "begin", 0, "status", status=503)])

    assert picture
    assert picture.events[0].bad
    assert picture.attempts[0].bad


def test_each_attempt_of_a_function_on_an_event_has_a_bar() -> None:
    """Check that each attempt has a bar and a line from the event, so that earlier failures are visible."""
    once = entry(1, events.NODE_TAINTED, "taint", 0, "evict")
    made = (replace(once.attempts[0], at=after(at), status=status) for at, status in ((1, 503), (3, 503), (9, 200)))

    picture = draw([replace(once, attempts=tuple(made))])

    assert picture
    assert [bar.bad for bar in picture.attempts] == [True, True, False]
    assert [(line.x2, line.y2) for line in picture.lines] == [(bar.x, bar.y) for bar in picture.attempts]


def test_an_event_is_never_drawn_after_an_attempt_on_it() -> None:
    """Check that an event is drawn before its attempts, even if it arrived in the journal later."""
    late = entry(1, events.NODE_TAINTED, "taint", 5)
    early = Attempt("s", "e", "evict", after(1), 0.1, 200)

    picture = draw([Entry(1, late.arrived, late.event, (early,))])

    assert picture
    assert picture.events[0].x <= picture.attempts[0].x


def test_of_nothing_there_is_no_picture() -> None:
    assert draw([]) is None


def test_a_length_of_time_is_for_the_eye() -> None:
    assert [seconds(value) for value in (0.5, 12.3, 600)] == ["0.50 s", "12 s", "10 min"]
