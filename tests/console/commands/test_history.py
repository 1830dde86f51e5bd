"""Tests for `kubectl maintenance history` with a journal that each test fills."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import ENDER_ANNOTATION, REQUESTER_ANNOTATION

START_TIME = datetime(2026, 3, 1, 10, 0, tzinfo=timezone.utc)
CREATED = {"creationTimestamp": "2026-03-01T10:00:00Z"}
DELETED = {**CREATED, "deletionTimestamp": "2026-03-01T10:03:00Z"}
RUNNING = {"phase": "Running", "evictionPods": 5, "pendingCount": 2}


def build_object_event(
    event_type: str, name: str, metadata: dict[str, Any] | None = None, status: dict[str, Any] | None = None
) -> CloudEvent:
    """Build the API server's event about the NodeMaintenance `name` of the node `node-NAME`."""
    return CloudEvent(
        {"id": f"{name}-{event_type}", "source": "/apis", "type": event_type, "kind": "NodeMaintenance"},
        {
            "metadata": {"name": name, "uid": f"uid-{name}", **CREATED, **(metadata or {})},
            "spec": {"nodeName": f"node-{name}"},
            "status": status or {},
        },
    )


def build_own_event(event_type: str, name: str, **data: Any) -> CloudEvent:
    reference = ObjectReference(MEDIK8S.api_version, name, f"uid-{name}")
    return build_event(event_type, "evict", reference, f"node-{name}", seed=event_type, data=data)


def run_history(journal_url: str, *arguments: str) -> Result:
    environment = {"TZ": "UTC"}
    result = CliRunner(env=environment).invoke(cli, ["history", "--journal", journal_url, *arguments])
    assert result.exit_code == 0, result.output
    return result


def write_event_per_minute(journal_url: str, *recorded: CloudEvent) -> None:
    with closing(Journal(journal_url)) as journal:
        journal.write_events((event, START_TIME + timedelta(minutes=number)) for number, event in enumerate(recorded))


@pytest.mark.parametrize(
    ("later_events", "seconds", "outcome"),
    [
        ([build_own_event(events.NODE_DRAINED, "a")], 60, "Succeeded"),
        ([build_object_event(events.RESOURCE_UPDATED, "a", DELETED, RUNNING)], 180, "given up: 2 of 5 pods remained"),
        ([build_object_event(events.RESOURCE_UPDATED, "a", DELETED)], 180, "given up"),
        (
            [
                build_own_event(events.NODE_DRAINED, "a"),
                build_object_event(events.RESOURCE_UPDATED, "a", DELETED, {"phase": "Succeeded"}),
                build_own_event(events.NODE_RESTORED, "a", nodeDeleted=True),
            ],
            60,
            "Succeeded",
        ),
        (
            [
                build_object_event(events.RESOURCE_UPDATED, "a", DELETED, RUNNING),
                build_own_event(events.NODE_RESTORED, "a", nodeDeleted=True),
            ],
            120,
            "node deleted",
        ),
        ([build_object_event(events.RESOURCE_UPDATED, "a", None, {"phase": "Failed"})], 60, "Failed"),
        ([build_object_event(events.RESOURCE_DELETED, "a")], 60, "deleted"),
        ([build_own_event(events.MAINTENANCE_BEGUN, "a")], None, "Running"),
        ([], None, "Waiting"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_history_shows_outcome_and_duration(
    journal_url: str, later_events: list[CloudEvent], seconds: int | None, outcome: str
) -> None:
    """Check the outcome of each maintenance, and how long its drain took; a running drain takes until now."""
    write_event_per_minute(journal_url, build_object_event(events.RESOURCE_ADDED, "a"), *later_events)

    (recorded,) = json.loads(run_history(journal_url, "-o", "json").stdout)["maintenances"]

    assert (recorded["name"], recorded["node"], recorded["outcome"]) == ("a", "node-a", outcome)
    assert recorded["started"] == START_TIME.isoformat()
    now = datetime.now(timezone.utc)
    assert recorded["seconds"] == seconds or (
        seconds is None and recorded["seconds"] == pytest.approx((now - START_TIME).total_seconds(), abs=60)
    )


def test_history_has_one_row_per_maintenance_newest_first(journal_url: str) -> None:
    """Check that the table names the node and the requester of each maintenance, also of a deleted one."""
    users = {REQUESTER_ANNOTATION: "alice", ENDER_ANNOTATION: "bob"}
    later = {"creationTimestamp": "2026-03-01T11:00:00Z"}
    write_event_per_minute(
        journal_url,
        build_object_event(events.RESOURCE_ADDED, "a", {"annotations": users}),
        build_object_event(events.RESOURCE_UPDATED, "a", {**DELETED, "annotations": users}, RUNNING),
        build_object_event(events.RESOURCE_ADDED, "b", later, {"phase": "Succeeded"}),
        CloudEvent({"id": "node", "source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "Node"}, {}),
    )

    heading, *rows = run_history(journal_url).stdout.splitlines()
    node_rows = run_history(journal_url, "node/node-a").stdout.splitlines()[1:]
    unknown = run_history(journal_url, "node-c")
    (recorded,) = json.loads(run_history(journal_url, "node-a", "-o", "json").stdout)["maintenances"]

    assert heading.split()[:2] == ["NAME", "NODE"]
    assert [row.split()[0] for row in rows] == ["b", "a"]
    assert rows[1].split()[:3] == ["a", "node-a", "alice"]
    assert rows[1].split()[5:] == ["3m", "given", "up:", "2", "of", "5", "pods", "remained"]
    assert node_rows == rows[1:]
    assert unknown.stdout == "No maintenances found.\n"
    assert unknown.stderr == 'Node "node-c" not found in the journal: see kubectl get nodes.\n'
    assert (recorded["requestedBy"], recorded["endedBy"]) == ("alice", "bob")


def test_since_selects_maintenances_with_later_event(journal_url: str) -> None:
    write_event_per_minute(
        journal_url,
        build_object_event(events.RESOURCE_ADDED, "a"),
        build_object_event(events.RESOURCE_ADDED, "b"),
        build_object_event(events.RESOURCE_ADDED, "c"),
        build_own_event(events.NODE_DRAINED, "a"),
    )

    result = run_history(journal_url, "--since", "2026-03-01T10:01:30Z", "-o", "json")

    assert {recorded["name"] for recorded in json.loads(result.stdout)["maintenances"]} == {"a", "c"}
