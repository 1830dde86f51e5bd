"""Tests for the selection of an event's trace."""

from __future__ import annotations

import uuid

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events, extensions
from eventing.events import ObjectReference, build_event

MAINTENANCE_UID = "0af76519-16cd-43dd-8448-eb211c80319c"
MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", MAINTENANCE_UID)
TRACEPARENT = "00-11111111111111111111111111111111-b7ad6b7169203331-01"


def build_cause(event_type: str, data: object = None, **extensions: str) -> CloudEvent:
    return CloudEvent({"id": "1", "source": "/test", "type": event_type, **extensions}, data)  # type: ignore[arg-type]


def get_traceparent_of_caused_event(cause: CloudEvent | None) -> object:
    """Return the traceparent of an event about the test's maintenance that is caused by `cause`."""
    return build_event(events.NODE_TAINTED, "taint", MAINTENANCE, "n", cause=cause, seed="s").get_extension(
        "traceparent"
    )


def test_event_continues_trace_of_cause() -> None:
    """Check that an event continues its cause's trace if both events are about the same maintenance.

    The product's events name the maintenance in an extension, and ApiServerSource's events contain it as data.
    """
    cause = build_cause(events.NODE_CORDONED, maintenance=MAINTENANCE_UID, traceparent=TRACEPARENT)
    maintenance = {"kind": "NodeMaintenance", "metadata": {"uid": MAINTENANCE_UID}}
    api_server_event = build_cause(events.RESOURCE_ADDED, maintenance, kind="NodeMaintenance", traceparent=TRACEPARENT)

    assert get_traceparent_of_caused_event(cause) == get_traceparent_of_caused_event(api_server_event) == TRACEPARENT


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(None, id="no cause"),
        pytest.param(build_cause(events.NODE_CORDONED, maintenance=MAINTENANCE_UID), id="no trace"),
        pytest.param(build_cause(events.TICK, traceparent=TRACEPARENT), id="tick"),
        pytest.param(build_cause(events.RESOURCE_UPDATED, {}, kind="Node", traceparent=TRACEPARENT), id="node"),
        pytest.param(
            build_cause(events.MAINTENANCE_RESTORE_PENDING, maintenance="another", traceparent=TRACEPARENT),
            id="another maintenance",
        ),
        pytest.param(
            build_cause(
                events.RESOURCE_UPDATED, {"metadata": {"uid": "b"}}, kind="NodeMaintenance", traceparent=TRACEPARENT
            ),
            id="another maintenance object",
        ),
        pytest.param(
            build_cause(events.NODE_CORDONED, maintenance=MAINTENANCE_UID, traceparent=f"00-{'0' * 32}-{'0' * 16}-00"),
            id="all zeros",
        ),
        pytest.param(
            build_cause(events.NODE_CORDONED, maintenance=MAINTENANCE_UID, traceparent="nonsense"), id="invalid"
        ),
    ],
)
def test_event_uses_trace_of_maintenance_if_cause_has_no_usable_trace(cause: CloudEvent | None) -> None:
    """Check that an event uses the maintenance's trace, whose trace id is the uid, if its cause has no usable trace."""
    assert get_traceparent_of_caused_event(cause) == extensions.build_root_traceparent(MAINTENANCE_UID)
    assert extensions.build_root_traceparent(MAINTENANCE_UID).split("-")[1] == uuid.UUID(MAINTENANCE_UID).hex


def test_events_emitted_during_attempt_continue_span_of_attempt() -> None:
    """Check that an event continues the current attempt's span if both are about the same maintenance."""
    with extensions.use_span(MAINTENANCE_UID, TRACEPARENT):
        assert get_traceparent_of_caused_event(build_cause(events.TICK)) == TRACEPARENT
    with extensions.use_span("another", TRACEPARENT):
        assert get_traceparent_of_caused_event(build_cause(events.TICK)) == extensions.build_root_traceparent(
            MAINTENANCE_UID
        )
    assert get_traceparent_of_caused_event(build_cause(events.TICK)) == extensions.build_root_traceparent(
        MAINTENANCE_UID
    )


def test_traceparent_is_valid_for_any_uid() -> None:
    """Check that any uid results in a valid W3C traceparent, with 32 and 16 digits that are not all zeros."""
    assert extensions.TRACEPARENT_PATTERN.fullmatch(extensions.build_root_traceparent("not a uuid"))
    assert extensions.build_root_traceparent("a") != extensions.build_root_traceparent("b")
