"""Tests of the event types: deterministic ids, extensions for Trigger filters, and what a cause passes on."""

from __future__ import annotations

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference, event
from eventing.http_binding import binary, received
from functions.event_data import data_of

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
OTHER = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-2")


def cause(name: str = "1", **extensions: str) -> CloudEvent:
    return CloudEvent({"id": name, "source": "/test", "type": events.TICK, **extensions}, None)


def test_the_same_cause_gives_the_same_id() -> None:
    """X-2: The same event from the same cause has the same id, so that a duplicate can be recognized."""
    first, second = (event(events.NODE_CORDONED, "cordon", MINE, "n", cause=cause()) for _ in range(2))

    assert first.get_id() == second.get_id()


def test_whatever_differs_makes_another_id() -> None:
    """X-2: Another step, type, maintenance, cause or seed gives another id."""
    made = [
        event(events.NODE_CORDONED, "cordon", MINE, "n", cause=cause()),
        event(events.NODE_TAINTED, "cordon", MINE, "n", cause=cause()),
        event(events.NODE_CORDONED, "taint", MINE, "n", cause=cause()),
        event(events.NODE_CORDONED, "cordon", OTHER, "n", cause=cause()),
        event(events.NODE_CORDONED, "cordon", MINE, "n", cause=cause("2")),
        event(events.NODE_CORDONED, "cordon", MINE, "n", cause=cause(), seed="s"),
        event(events.NODE_CORDONED, "cordon", MINE, "n", seed="s"),
        event(events.NODE_CORDONED, "cordon", MINE, "n"),
        event(events.NODE_CORDONED, "cordon", MINE, "n"),
    ]

    assert len({item.get_id() for item in made}) == len(made)


def test_an_event_carries_what_its_triggers_filter_by() -> None:
    """X-4: An event has node, maintenance and partition key as extensions, JSON data, and the reference in the data."""
    made = event(events.PODS_EVICTED, "evict", MINE, "node-1", cause=cause(), data={"error": ""}, flags=("more",))

    extensions = {name: made.get_extension(name) for name in ("node", "maintenance", "partitionkey", "cause", "more")}
    assert extensions == {
        "node": "node-1",
        "maintenance": "uid-1",
        "partitionkey": "node-1",
        "cause": "1",
        "more": "true",
    }
    assert (made.get_datacontenttype(), made.get_subject()) == ("application/json", "nm")
    assert data_of(made) == {"maintenance": MINE.as_data(), "node": "node-1", "error": ""}


@pytest.mark.parametrize("name", ["node-1\n", "node\t1", "node-1\x7f", "node-1\uffff", "n" * 254])
def test_a_node_name_that_can_be_no_attribute_is_in_the_data_alone(name: str) -> None:
    """X-6: A node name that no attribute can hold is in the data only, so that receivers accept the event.

    A schema may accept such a name, and the failure of its maintenance must be reported.
    """
    message = binary(event(events.MAINTENANCE_FAILED, "begin", MINE, name))

    read = received(message.headers, message.body)

    assert (read.get_extension("node"), read.get_extension("partitionkey")) == (None, "uid-1")
    assert data_of(read)["node"] == name


def test_every_type_of_ours_has_its_meaning() -> None:
    """X-4: `MEANINGS` describes all event types in the project's namespace, except the one that no broker carries."""
    ours = {value for name, value in vars(events).items() if name.isupper() and str(value).startswith("dev.nodemaint")}

    assert set(events.MEANINGS) == ours - {events.ATTEMPTS_MADE}
    assert all(kind.startswith("dev.nodemaintenance.") for kind in events.MEANINGS)


def test_a_reference_is_made_of_the_whole_object() -> None:
    """X-2: A reference has the apiVersion, name and uid of the object, which suffice to identify and read it."""
    whole = {"apiVersion": MINE.api_version, "kind": "NodeMaintenance", "metadata": {"name": "nm", "uid": "uid-1"}}

    assert Reference.of(whole) == MINE
