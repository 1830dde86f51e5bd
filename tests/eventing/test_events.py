"""Tests for the product's events: deterministic ids, extensions for Trigger filters, and object references."""

from __future__ import annotations

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.http_binding import decode_event, encode_binary
from functions.event_data import require_data

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
OTHER_MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-2")


def build_cause(event_id: str = "1", **extensions: str) -> CloudEvent:
    return CloudEvent({"id": event_id, "source": "/test", "type": events.TICK, **extensions}, None)


def test_same_event_with_same_cause_has_same_id() -> None:
    """X-2: the same event with the same cause has the same id, so that consumers can recognize duplicates."""
    first, second = (
        build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "n", cause=build_cause()) for _ in range(2)
    )

    assert first.get_id() == second.get_id()


def test_event_id_depends_on_step_type_maintenance_cause_and_seed() -> None:
    """X-2: a different step, type, maintenance, cause or seed results in a different id."""
    built_events = [
        build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "n", cause=build_cause()),
        build_event(events.NODE_TAINTED, "cordon", MAINTENANCE, "n", cause=build_cause()),
        build_event(events.NODE_CORDONED, "taint", MAINTENANCE, "n", cause=build_cause()),
        build_event(events.NODE_CORDONED, "cordon", OTHER_MAINTENANCE, "n", cause=build_cause()),
        build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "n", cause=build_cause("2")),
        build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "n", cause=build_cause(), seed="s"),
        build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "n", seed="s"),
        build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "n"),
        build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "n"),
    ]

    assert len({event.get_id() for event in built_events}) == len(built_events)


def test_event_has_extensions_for_trigger_filters() -> None:
    """X-4: an event has node, maintenance and partition key as extensions, and JSON data with the object reference."""
    event = build_event(
        events.PODS_EVICTED, "evict", MAINTENANCE, "node-1", cause=build_cause(), data={"error": ""}, flags=("more",)
    )

    extensions = {name: event.get_extension(name) for name in ("node", "maintenance", "partitionkey", "cause", "more")}
    assert extensions == {
        "node": "node-1",
        "maintenance": "uid-1",
        "partitionkey": "node-1",
        "cause": "1",
        "more": "true",
    }
    assert (event.get_datacontenttype(), event.get_subject()) == ("application/json", "nm")
    assert require_data(event) == {"maintenance": MAINTENANCE.as_data(), "node": "node-1", "error": ""}


@pytest.mark.parametrize("name", ["node-1\n", "node\t1", "node-1\x7f", "node-1\uffff", "n" * 254])
def test_node_name_that_is_invalid_as_attribute_is_only_in_data(name: str) -> None:
    """X-6: a node name that is not a valid attribute value is only in the data, so that receivers accept the event.

    The schema of NodeMaintenance may accept such a name, and the failure of that maintenance must be reported.
    """
    message = encode_binary(build_event(events.MAINTENANCE_STEP_FAILED, "begin", MAINTENANCE, name))

    decoded = decode_event(message.headers, message.body)

    assert (decoded.get_extension("node"), decoded.get_extension("partitionkey")) == (None, "uid-1")
    assert require_data(decoded)["node"] == name


def test_every_event_type_is_described() -> None:
    """X-4: `TYPE_DESCRIPTIONS` describes all event types except `ATTEMPTS_MADE`, which is never sent to a broker."""
    own_types = {
        value for name, value in vars(events).items() if name.isupper() and str(value).startswith("dev.nodemaint")
    }

    assert set(events.TYPE_DESCRIPTIONS) == own_types - {events.ATTEMPTS_MADE}
    assert all(event_type.startswith("dev.nodemaintenance.") for event_type in events.TYPE_DESCRIPTIONS)


def test_reference_is_built_from_object() -> None:
    """X-2: a reference contains the apiVersion, name and uid of an object, which suffice to read the object."""
    maintenance = {
        "apiVersion": MAINTENANCE.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": "nm", "uid": "uid-1"},
    }

    assert ObjectReference.from_object(maintenance) == MAINTENANCE
