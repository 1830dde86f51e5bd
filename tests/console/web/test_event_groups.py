"""Tests for the grouping of recorded events, and for the events that count as failed."""

from __future__ import annotations

from dataclasses import replace

from cloudevents.core.v1.event import CloudEvent

from console.web.event_groups import group_by_object, is_failed
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.events import ObjectReference, build_event
from eventing.journal.entries import Attempt, Entry
from kube.maintenance.objects import ENDER_ANNOTATION
from tests.console.web.test_swimlanes import build_entry, build_time

OTHER_MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "other", "other-uid")


def build_other_entry(seq: int) -> Entry:
    event = build_event(events.NODE_DRAINED, "evict", OTHER_MAINTENANCE, "node-2", seed=str(seq))
    return Entry(seq, build_time(seq), event)


def test_events_are_grouped_by_object_and_groups_with_newest_events_come_first() -> None:
    """Check that groups keep the order of their events, and that events about no object are in the last group."""
    tick = Entry(5, build_time(5), CloudEvent({"id": "tick", "source": "/tick", "type": events.TICK}, {}))
    entries = [tick, build_other_entry(4), build_entry(3, events.NODE_TAINTED, "taint", 3), build_other_entry(2)]

    groups = group_by_object(entries)

    assert [(group.uid, [entry.seq for entry in group.entries]) for group in groups] == [
        ("other-uid", [4, 2]),
        ("uid", [3]),
        ("", [5]),
    ]
    assert [group.title for group in groups] == ["node-2", "node-1", "Other events"]
    assert [group.name for group in groups] == ["other", "nm", ""]


def test_group_counts_events_of_idle_ticks_without_listing_them() -> None:
    """Check that events of idle ticks, which changed nothing, are only counted."""
    idle = build_entry(2, events.NODE_TAINTED, "resync", 2, "evict")

    (group,) = group_by_object([idle, build_entry(1, events.NODE_TAINTED, "taint", 1, "evict")])

    assert [entry.seq for entry in group.entries] == [1]
    assert group.idle_count == 1


def test_group_shows_that_drain_was_given_up() -> None:
    """Check that a group has the progress of a drain that the deletion of its maintenance ended."""
    metadata = {"name": "nm", "uid": "uid", "creationTimestamp": "2026-03-01T10:00:00Z"}
    deleted = CloudEvent(
        {"id": "deleted", "source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"},
        {
            "metadata": {**metadata, "deletionTimestamp": "2026-03-01T10:03:00Z"},
            "status": {"phase": "Running", "evictionPods": 5, "pendingCount": 2},
        },
    )
    entries = [Entry(2, build_time(2), deleted), build_entry(1, events.PODS_EVICTED, "evict", 1)]

    (group,) = group_by_object(entries)
    (drained_group,) = group_by_object([*entries, build_entry(0, events.NODE_DRAINED, "evict", 0)])

    assert group.origin.given_up == "given up after 3m: 2 of 5 pods remained"
    assert drained_group.origin.given_up == ""


def test_group_names_last_user_who_ended_maintenance() -> None:
    """Check that the newest event counts, although the page lists the events newest first."""
    attributes = {"source": "/apis", "type": events.RESOURCE_UPDATED, "kind": "NodeMaintenance"}
    metadata = {"name": "nm", "uid": "uid", "deletionTimestamp": "2026-03-01T10:03:00Z"}
    entries = [
        Entry(
            seq,
            build_time(seq),
            CloudEvent(
                {"id": f"deleted-{seq}", **attributes},
                {"metadata": {**metadata, "annotations": {ENDER_ANNOTATION: user}}},
            ),
        )
        for seq, user in ((2, "bob"), (1, "alice"))
    ]

    (group,) = group_by_object(entries)

    assert group.origin.ender == "bob"


def test_event_is_failed_unless_a_later_attempt_of_the_same_function_succeeded() -> None:
    """Check that dead letters and failure events count as failed, but events with a successful retry do not."""
    failed = build_entry(1, events.NODE_TAINTED, "taint", 1, "evict", "status", status=503)
    event = failed.event
    retries = [
        Attempt(event.get_source(), event.get_id(), name, build_time(9), 0.02, 200) for name in ("evict", "status")
    ]
    dead_letter = replace(failed, attempts=(), event=add_dead_letter_extensions(event, DeadLetter("/evict", 503, "")))
    step_failed = build_event(
        events.MAINTENANCE_STEP_FAILED, "evict", OTHER_MAINTENANCE, "node-2", data={"step": "evict", "error": "denied"}
    )

    assert is_failed(failed)
    assert is_failed(replace(failed, attempts=(*failed.attempts, retries[0])))
    assert not is_failed(replace(failed, attempts=(*failed.attempts, *retries)))
    assert is_failed(dead_letter)
    assert is_failed(replace(failed, attempts=(), event=step_failed))
    assert [group.failed_count for group in group_by_object([failed])] == [1]
