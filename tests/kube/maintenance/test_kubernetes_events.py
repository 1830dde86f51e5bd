"""Tests of the Kubernetes Events about nodes and maintenances, on plain dicts."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from kube.kubernetes_events import LONGEST_NAME
from kube.maintenance.kubernetes_events import (
    CORDON,
    FAIL,
    SUCCEED,
    TEXTS,
    counted_again,
    maintenance_events,
    node_event,
    this_one,
)
from kube.paths import Object
from kube.times import timestamp
from tests.kube.samples import maintenance

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def name_of(event: Object) -> str:
    return str(event["metadata"]["name"])


def test_the_event_is_as_a_kubelet_writes_it() -> None:
    """OSV-12: an Event about a node is Normal, in namespace default, and has the node's name in place of its uid."""
    event = node_event("node-1", CORDON, "said", maintenance(), NOW)

    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert (event["type"], event["reason"], event["message"]) == ("Normal", CORDON, "said")
    assert event["firstTimestamp"] == event["lastTimestamp"] == timestamp(NOW)


def test_an_event_is_whole() -> None:
    """OSV-12, NMO-27: a maintenance's Event has its uid and count 1; its name is the maintenance's name and a hash."""
    itself, _ = maintenance_events(FAIL, "why", maintenance(), NOW)
    name = itself["metadata"].pop("name")

    about = {
        "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
        "kind": "NodeMaintenance",
        "name": "nm",
        "uid": "nm-uid",
    }
    assert itself == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FailedMaintenance",
        "message": "Failed a node maintenance: why",
        "source": {"component": "node-maintenance"},
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
    }
    assert re.fullmatch(r"nm\.[0-9a-f]{16}", name)
    node = node_event("node-1", FAIL, "why", maintenance(), NOW)
    assert this_one("node-1", FAIL, maintenance()) == f"metadata.name={node['metadata']['name']}"


def test_told_twice_it_has_one_name() -> None:
    """OSV-12, X-2: the name of an Event depends on maintenance, object and reason, not on message and time."""
    first = node_event("node-1", "A", "said", maintenance(), NOW)

    assert name_of(node_event("node-1", "A", "said again", maintenance(), NOW)) == name_of(first)
    assert name_of(node_event("node-1", "B", "said", maintenance(), NOW)) != name_of(first)
    assert name_of(node_event("node-1", "A", "said", maintenance(), NOW + timedelta(seconds=1))) == name_of(first)


def test_told_again_it_is_counted() -> None:
    """OSV-12: a repeated Event increases the count and replaces only the message and the last timestamp."""
    later = node_event("node-1", "A", "said again", maintenance(), NOW + timedelta(seconds=1))

    patch = counted_again({"count": 2, "firstTimestamp": timestamp(NOW)}, later)

    assert patch == {"count": 3, "message": "said again", "lastTimestamp": later["lastTimestamp"]}


def test_a_maintenance_is_told_at_itself_by_its_uid_and_at_its_node() -> None:
    """NMO-27: a maintenance and its node each get an Event with the same message, a Warning for a failure.

    Without a node there is only the Event about the maintenance.
    """
    item = maintenance()

    itself, node = maintenance_events(FAIL, "why", item, NOW)

    assert itself["involvedObject"]["uid"] == item["metadata"]["uid"]
    assert node["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert {(event["type"], event["message"]) for event in (itself, node)} == {
        ("Warning", "Failed a node maintenance: why")
    }
    assert len(maintenance_events(FAIL, "why", {**item, "spec": {}}, NOW)) == 1


def test_a_long_name_and_a_long_message_make_an_event_all_the_same() -> None:
    """NMO-27: an Event about an object with the longest possible name has a valid name, and its message is truncated.

    Names of Events have at most 253 characters and are DNS subdomains.
    """
    name = "a" * (LONGEST_NAME - 1) + "-b.example.com"

    event = node_event(name, "R", "x" * 10_000, maintenance(), NOW)

    assert name_of(event).startswith("a" * (LONGEST_NAME - 1) + ".")
    assert len(name_of(event)) <= 253
    assert event["involvedObject"]["name"] == name
    assert len(event["message"]) <= 1024


def test_what_is_announced_says_all_that_is_looked_for() -> None:
    """NMO-27: an Event names the object and the reason, has type Normal if nothing failed, and starts with count 1."""
    itself, node = maintenance_events(SUCCEED, "", maintenance(), NOW)

    known = {"apiVersion": maintenance()["apiVersion"], "kind": "NodeMaintenance", "name": "nm", "uid": "nm-uid"}
    assert itself["involvedObject"] == known
    for event in (itself, node):
        assert (event["reason"], event["message"], event["type"]) == (SUCCEED, TEXTS[SUCCEED], "Normal")
        assert event["firstTimestamp"] == event["lastTimestamp"] == timestamp(NOW)
        assert event["count"] == 1
    assert counted_again({}, itself)["count"] == 2
