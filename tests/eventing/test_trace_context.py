"""Tests of the trace that an event belongs to."""

from __future__ import annotations

import uuid

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events, trace_context
from eventing.events import Reference, event

UID = "0af76519-16cd-43dd-8448-eb211c80319c"
MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", UID)
TRACE = "00-11111111111111111111111111111111-b7ad6b7169203331-01"


def cause(type: str, data: object = None, **extensions: str) -> CloudEvent:
    return CloudEvent({"id": "1", "source": "/test", "type": type, **extensions}, data)  # type: ignore[arg-type]


def followed_by(origin: CloudEvent | None) -> object:
    """Return the traceparent of an event about our maintenance with `origin` as its cause."""
    return event(events.NODE_TAINTED, "taint", MINE, "n", cause=origin, seed="s").get_extension("traceparent")


def test_a_trace_is_passed_on_from_event_to_event() -> None:
    """Check that an event continues the trace of its cause if the cause is about the same maintenance.

    An event of this project names the maintenance in an extension, and one of the API server in its data.
    """
    ours = cause(events.NODE_CORDONED, maintenance=UID, traceparent=TRACE)
    whole = {"kind": "NodeMaintenance", "metadata": {"uid": UID}}
    servers = cause(events.RESOURCE_ADDED, whole, kind="NodeMaintenance", traceparent=TRACE)

    assert followed_by(ours) == followed_by(servers) == TRACE


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param(None, id="a watch"),
        pytest.param(cause(events.NODE_CORDONED, maintenance=UID), id="no trace"),
        pytest.param(cause(events.TICK, traceparent=TRACE), id="a tick"),
        pytest.param(cause(events.RESOURCE_UPDATED, {}, kind="Node", traceparent=TRACE), id="a node"),
        pytest.param(cause(events.MAINTENANCE_ENDED, maintenance="another", traceparent=TRACE), id="another one"),
        pytest.param(
            cause(events.RESOURCE_UPDATED, {"metadata": {"uid": "b"}}, kind="NodeMaintenance", traceparent=TRACE),
            id="another whole one",
        ),
        pytest.param(
            cause(events.NODE_CORDONED, maintenance=UID, traceparent=f"00-{'0' * 32}-{'0' * 16}-00"), id="zeros"
        ),
        pytest.param(cause(events.NODE_CORDONED, maintenance=UID, traceparent="nonsense"), id="nonsense"),
    ],
)
def test_without_a_trace_an_event_is_in_the_maintenances_own(origin: CloudEvent | None) -> None:
    """Check that an event without a usable trace belongs to its maintenance's trace, whose id is the uid."""
    assert followed_by(origin) == trace_context.root(UID)
    assert trace_context.root(UID).split("-")[1] == uuid.UUID(UID).hex


def test_events_of_an_attempt_continue_its_span() -> None:
    """Check that events about the attempt's maintenance continue its span, and that events about others do not."""
    with trace_context.current(UID, TRACE):
        assert followed_by(cause(events.TICK)) == TRACE
    with trace_context.current("another", TRACE):
        assert followed_by(cause(events.TICK)) == trace_context.root(UID)
    assert followed_by(cause(events.TICK)) == trace_context.root(UID)


def test_any_uid_makes_a_trace_that_is_one() -> None:
    """Check that any uid gives a valid W3C traceparent, with 32 and 16 digits that are not all zeros."""
    assert trace_context.FORM.fullmatch(trace_context.root("not a uuid"))
    assert trace_context.root("a") != trace_context.root("b")
