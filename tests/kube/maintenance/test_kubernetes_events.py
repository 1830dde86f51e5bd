"""Tests for the Kubernetes Events about nodes and maintenances, on plain dicts."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from kube.kubernetes_events import MAX_NAME_CHARACTERS, KubernetesEvent, build_event, build_increment_patch
from kube.maintenance.kubernetes_events import (
    CORDON_REASON,
    EVENT_MESSAGES,
    FAIL_REASON,
    SUCCEED_REASON,
    build_node_kubernetes_event,
    build_progress_events,
)
from kube.paths import Object
from kube.times import format_time
from tests.kube.samples import make_maintenance, make_pod

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def build_node_event(name: str, reason: str, message: str, now: datetime = NOW) -> Object:
    return build_event(build_node_kubernetes_event(name, reason, make_maintenance(), message), now)


def build_maintenance_events(reason: str, detail: str, maintenance: Object) -> list[Object]:
    return [
        build_event(kubernetes_event, NOW) for kubernetes_event in build_progress_events(reason, maintenance, detail)
    ]


def get_name(event: Object) -> str:
    return str(event["metadata"]["name"])


def test_node_event_has_same_form_as_kubelet_event() -> None:
    """OSV-12: like a kubelet's, an Event about a node is Normal, in namespace default, with the node name as uid."""
    event = build_node_event("node-1", CORDON_REASON, "message")

    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert (event["type"], event["reason"], event["message"]) == ("Normal", CORDON_REASON, "message")
    assert event["firstTimestamp"] == event["lastTimestamp"] == format_time(NOW)


def test_maintenance_event_has_all_fields() -> None:
    """OSV-12, NMO-27: a maintenance's Event refers to its uid, has count 1, and is named after it with a hash."""
    maintenance_event, _ = build_maintenance_events(FAIL_REASON, "why", make_maintenance())
    name = maintenance_event["metadata"].pop("name")

    involved_object = {
        "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
        "kind": "NodeMaintenance",
        "name": "nm",
        "uid": "nm-uid",
    }
    assert maintenance_event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default"},
        "involvedObject": involved_object,
        "type": "Warning",
        "reason": "FailedMaintenance",
        "message": "Failed a node maintenance: why",
        "source": {"component": "node-maintenance"},
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
    }
    assert re.fullmatch(r"nm\.[0-9a-f]{16}", name)


def test_repeated_kubernetes_event_has_same_name() -> None:
    """OSV-12, X-2: the name of an Event depends on maintenance, object and reason, not on message and time."""
    first_event = build_node_event("node-1", "A", "message")

    assert get_name(build_node_event("node-1", "A", "new message")) == get_name(first_event)
    assert get_name(build_node_event("node-1", "B", "message")) != get_name(first_event)
    assert get_name(build_node_event("node-1", "A", "message", NOW + timedelta(seconds=1))) == get_name(first_event)


def test_repeated_kubernetes_event_increments_count() -> None:
    """OSV-12: a repeated Event increases the count and replaces only the message and the last timestamp."""
    later_event = build_node_event("node-1", "A", "new message", NOW + timedelta(seconds=1))

    patch = build_increment_patch({"count": 2, "firstTimestamp": format_time(NOW)}, later_event)

    assert patch == {"count": 3, "message": "new message", "lastTimestamp": later_event["lastTimestamp"]}


def test_maintenance_and_node_each_get_an_event() -> None:
    """NMO-27: a maintenance and its node each get an Event with the same message, which is a Warning for a failure.

    If the node does not exist, only the maintenance gets an Event.
    """
    maintenance = make_maintenance()

    maintenance_event, node_event = build_maintenance_events(FAIL_REASON, "why", maintenance)

    assert maintenance_event["involvedObject"]["uid"] == maintenance["metadata"]["uid"]
    assert node_event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert {(event["type"], event["message"]) for event in (maintenance_event, node_event)} == {
        ("Warning", "Failed a node maintenance: why")
    }
    assert len(build_maintenance_events(FAIL_REASON, "why", {**maintenance, "spec": {}})) == 1


def test_long_name_and_message_give_valid_kubernetes_event() -> None:
    """NMO-27: an Event about an object with a name of maximum length has a valid name and a truncated message.

    Names of Events have at most 253 characters and are DNS subdomains.
    """
    name = "a" * (MAX_NAME_CHARACTERS - 1) + "-b.example.com"

    event = build_node_event(name, "R", "x" * 10_000)

    assert get_name(event).startswith("a" * (MAX_NAME_CHARACTERS - 1) + ".")
    assert len(get_name(event)) <= 253
    assert event["involvedObject"]["name"] == name
    assert len(event["message"]) <= 1024


def test_success_event_is_normal_and_names_object() -> None:
    """NMO-27: an Event names the object and the reason, has type Normal if nothing failed, and starts with count 1."""
    maintenance_event, node_event = build_maintenance_events(SUCCEED_REASON, "", make_maintenance())

    involved_object = {
        "apiVersion": make_maintenance()["apiVersion"],
        "kind": "NodeMaintenance",
        "name": "nm",
        "uid": "nm-uid",
    }
    assert maintenance_event["involvedObject"] == involved_object
    for event in (maintenance_event, node_event):
        assert (event["reason"], event["message"], event["type"]) == (
            SUCCEED_REASON,
            EVENT_MESSAGES[SUCCEED_REASON],
            "Normal",
        )
        assert event["firstTimestamp"] == event["lastTimestamp"] == format_time(NOW)
        assert event["count"] == 1
    assert build_increment_patch({}, maintenance_event)["count"] == 2


def test_kubernetes_event_without_series_has_event_for_each_message() -> None:
    """OSV-12: a `KubernetesEvent` without `series` is a Warning, and its name depends on object, reason and message."""
    kubernetes_event, same, other = (
        KubernetesEvent.from_object(make_pod(), "v1", "Pod", "Waits", message) for message in ("a", "a", "b")
    )

    assert kubernetes_event.event_name == same.event_name != other.event_name
    assert build_event(kubernetes_event, NOW)["metadata"]["namespace"] == "ns"
    assert build_event(kubernetes_event, NOW)["type"] == "Warning"
