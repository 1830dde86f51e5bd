"""Tests for the announcements of blockages: which are due, which are over, and what their Events record."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kube.budgets import PROGRESSING_REASONS
from kube.kubernetes_events import MAX_MESSAGE_CHARACTERS
from kube.maintenance.escalation import DELETE, DELETE_NOW, DELETE_UNREADY
from kube.maintenance.objects import MAX_LEASE_ERRORS
from kube.notifications.announcements import (
    BLOCKED_REASON,
    RECORD_ANNOTATION,
    REPEAT_DELAY,
    UNBLOCKED_REASON,
    AnnouncementRecord,
    Blockage,
    RecordLog,
    build_blocked_record,
    build_owner_events,
    build_record_event,
    describe_blockage,
    describe_blockage_end,
    find_blockages,
    find_ended_blockages,
    parse_announcement_record,
)
from kube.paths import Object
from kube.times import format_time
from tests.kube.samples import make_maintenance

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
ENTRY: Object = {
    "namespace": "shop",
    "name": "web-1",
    "reason": "DisruptionBudget",
    "budget": "web",
    "message": "budget web needs 2 healthy pods and has 2",
    "healthy": 2,
    "needed": 2,
    "looserBudget": "minAvailable=1",
    "since": format_time(NOW - MINUTE),
}
BUDGET_REFERENCE = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "namespace": "shop",
    "name": "web",
    "uid": "budget-uid",
}


def make_blocked_maintenance(*entries: Object, **status: Any) -> Object:
    """Return a maintenance whose status has these blocked pods, by default a single pod."""
    return make_maintenance({"blockedPods": list(entries or [ENTRY]), **status})


def find_only_blockage(*entries: Object) -> Blockage:
    (blockage,) = find_blockages(make_blocked_maintenance(*entries))
    return blockage


def make_record_from_event(record: AnnouncementRecord, recorded_at: datetime = NOW) -> AnnouncementRecord:
    """Return the announcement's record as another process reads it from the Event that contains it."""
    parsed = parse_announcement_record(build_record_event(record, "message", recorded_at))
    assert parsed is not None
    return parsed


def test_fifteen_pods_of_one_pdb_are_one_blockage() -> None:
    """Check that the message for the owners states the PDB, the number of pods, and the command that unblocks them."""
    blockage = find_only_blockage(*({**ENTRY, "name": f"web-{number}"} for number in range(15)))

    assert blockage.key == "DisruptionBudget shop/web"
    assert describe_blockage(blockage, NOW) == (
        '15 pods (shop/web-0, shop/web-1, shop/web-2 and 12 more) cannot leave node "node-1", which is being drained: '
        "budget web needs 2 healthy pods and has 2. What unblocks the drain: 1 more ready pod under this budget "
        "(repair unready pods, or scale up the workload); or a looser budget: "
        """kubectl -n shop patch pdb web -p '{"spec":{"minAvailable":1}}'"""
    )


def test_pods_with_one_reason_and_several_messages_are_one_blockage() -> None:
    """Check that a changed message of the API server does not cause another announcement."""
    refused = {"namespace": "shop", "reason": "Error", "since": ENTRY["since"]}
    entries = [{**refused, "name": f"web-{number}", "message": f"request {number}"} for number in range(3)]

    blockage = find_only_blockage(*entries)

    assert blockage.key == "Refused"
    assert describe_blockage(blockage, NOW).endswith("which is being drained: request 0")


STEPS = [
    {"after": "10m", "action": DELETE_UNREADY},
    {"after": "46m", "action": DELETE},
    {"after": "24h", "action": DELETE_NOW},
]
DELETE_STEP = {"escalation": {**STEPS[1], "time": "2026-01-02T03:04:00Z"}}


@pytest.mark.parametrize(
    ("drain", "status", "expected"),
    [
        ({"deadline": "1h"}, {}, "The drain's deadline is 03:18 UTC. What unblocks"),
        ({"deadline": "1m"}, {}, "The drain's deadline was 02:19 UTC. What unblocks"),
        (
            {"escalation": STEPS},
            {},
            "At 02:28 UTC, the pods that are not ready are deleted regardless of their budget. What unblocks",
        ),
        (
            {"deadline": "48h", "escalation": STEPS[1:]},
            {},
            "The drain's deadline is 2026-01-04 02:18 UTC; at 03:04 UTC, these pods are deleted regardless of their "
            "budget. What unblocks",
        ),
        (
            {"escalation": STEPS},
            DELETE_STEP,
            "At 2026-01-03 02:18 UTC, these pods are deleted regardless of their budget, with grace period 0. What",
        ),
        ({"deadline": "soon", "escalation": STEPS}, {}, "and has 2. What unblocks"),
        ({"deadline": "1h"}, {"startTime": "9999-12-31T23:59:59Z"}, "and has 2. What unblocks"),
    ],
    ids=["deadline", "passed deadline", "first step", "both", "last step", "invalid spec", "invalid start"],
)
def test_announcement_states_deadline_and_next_escalation_step(drain: Object, status: Object, expected: str) -> None:
    """Check that the message states the deadline, and the time and effect of the next escalation step, if any."""
    maintenance = make_blocked_maintenance(**{"startTime": "2026-01-02T02:18:00Z", **status})
    (blockage,) = find_blockages({**maintenance, "spec": {**maintenance["spec"], "drain": drain}})

    assert expected in describe_blockage(blockage, NOW)


def test_announcement_states_only_escalation_steps_that_delete_pods() -> None:
    """Check that the message about pods that no escalation step deletes states only the deadline."""
    maintenance = make_blocked_maintenance({**ENTRY, "reason": "Force"}, startTime="2026-01-02T02:18:00Z")
    spec = {**maintenance["spec"], "drain": {"deadline": "1h", "escalation": STEPS}}
    (blockage,) = find_blockages({**maintenance, "spec": spec})

    assert "The drain's deadline is 03:18 UTC. What unblocks" in describe_blockage(blockage, NOW)


@pytest.mark.parametrize(
    "maintenance",
    [
        *(make_blocked_maintenance({**ENTRY, "reason": reason}) for reason in PROGRESSING_REASONS),
        make_blocked_maintenance(errorOnLeaseCount=MAX_LEASE_ERRORS + 1),
        {
            **make_blocked_maintenance(),
            "metadata": {**make_maintenance()["metadata"], "deletionTimestamp": format_time(NOW)},
        },
    ],
    ids=[*PROGRESSING_REASONS, "lease lost", "deleted"],
)
def test_drain_in_progress_and_ended_maintenance_have_no_blockage(maintenance: Object) -> None:
    assert find_blockages(maintenance) == []


@pytest.mark.parametrize(
    ("since", "is_overdue"),
    [(NOW - MINUTE, True), (NOW - MINUTE + timedelta(seconds=1), False), (NOW + MINUTE, False)],
    ids=["a minute ago", "less than a minute ago", "in the future"],
)
def test_blockage_is_overdue_after_minimum_time(since: datetime, is_overdue: bool) -> None:
    blockage = find_only_blockage({**ENTRY, "since": format_time(since)})

    assert blockage.is_overdue(MINUTE, NOW) is is_overdue


def test_blockage_without_valid_time_is_never_overdue() -> None:
    assert not find_only_blockage({**ENTRY, "since": "soon"}).is_overdue(timedelta(0), NOW)


def test_announcement_record_is_read_as_written() -> None:
    """Check that the Event on the NodeMaintenance contains all data for announcing the end of the blockage."""
    record = build_blocked_record(find_only_blockage(), [BUDGET_REFERENCE])

    event = build_record_event(record, "x" * 2000, NOW)

    assert parse_announcement_record(event) == record
    assert (event["reason"], event["type"], event["metadata"]["namespace"]) == (BLOCKED_REASON, "Warning", "default")
    assert event["involvedObject"]["uid"] == record.uid == "nm-uid"
    assert len(event["message"]) < MAX_MESSAGE_CHARACTERS + 100


def test_two_processes_write_announcement_record_of_same_name() -> None:
    """Check that the name of a record's Event does not depend on the process, the message or the time."""
    record = build_blocked_record(find_only_blockage(), [BUDGET_REFERENCE])
    names = {
        build_record_event(item, message, now)["metadata"]["name"]
        for item, message, now in (
            (record, "one", NOW),
            (build_blocked_record(find_only_blockage(), []), "two", NOW + MINUTE),
        )
    }

    assert len(names) == 1


@pytest.mark.parametrize(
    "annotation",
    ["{", "[]", "null", '{"node": "n"}', '{"node":"n","key":"k","since":"","objects":[1]}', "[" * 100_000],
    ids=["not JSON", "list", "null", "fields missing", "malformed object", "deep"],
)
def test_malformed_announcement_record_of_another_client_is_ignored(annotation: str) -> None:
    event = build_record_event(build_blocked_record(find_only_blockage()), "message", NOW)
    event["metadata"]["annotations"] = {RECORD_ANNOTATION: annotation}

    assert parse_announcement_record(event) is None


def test_kubernetes_events_of_other_writers_are_not_announcement_records() -> None:
    event = build_record_event(build_blocked_record(find_only_blockage()), "message", NOW)

    assert parse_announcement_record({**event, "reason": "BeginMaintenance"}) is None
    assert parse_announcement_record({**event, "metadata": {"name": "a"}}) is None


def test_end_of_blockage_is_announced_when_cause_has_disappeared() -> None:
    """Check that the end of a blockage is announced once, on the same objects, and only if it blocks no pod."""
    blockage = find_only_blockage()
    record = make_record_from_event(build_blocked_record(blockage, [BUDGET_REFERENCE]))
    other_cause = find_only_blockage({**ENTRY, "budget": "other"})

    assert find_ended_blockages(RecordLog([record]), [blockage]) == []
    (over,) = find_ended_blockages(RecordLog([record]), [other_cause])
    assert (over.reason, over.blockage_id, over.objects) == (UNBLOCKED_REASON, record.blockage_id, record.objects)
    assert find_ended_blockages(RecordLog([record, make_record_from_event(over)]), []) == []
    assert describe_blockage_end(over) == (
        'the drain of node "node-1" is no longer blocked by this cause: DisruptionBudget shop/web'
    )
    (event,) = build_owner_events(over, "message", NOW)
    assert (event["involvedObject"], event["type"]) == (BUDGET_REFERENCE, "Normal")
    assert event["metadata"]["namespace"] == "shop"


def test_blockage_is_announced_only_once_while_it_lasts() -> None:
    """Check that a blockage is announced once while it lasts, even if the first blocked pods have terminated."""
    blockage = find_only_blockage()
    log = RecordLog([make_record_from_event(build_blocked_record(blockage), NOW - timedelta(hours=1))])
    later = find_only_blockage({**ENTRY, "name": "web-2", "since": format_time(NOW)})

    assert not log.may_announce(blockage, NOW)
    assert not log.may_announce(later, NOW)
    assert RecordLog().may_announce(blockage, NOW)
    assert log.may_announce(find_only_blockage({**ENTRY, "budget": "other"}), NOW)


@pytest.mark.parametrize(("age", "may_announce"), [(REPEAT_DELAY, True), (REPEAT_DELAY - MINUTE, False)])
def test_repeated_blockage_is_announced_only_after_repeat_delay(age: timedelta, may_announce: bool) -> None:
    """Check that a repeated blockage with the same cause is announced only after `REPEAT_DELAY`."""
    record = make_record_from_event(build_blocked_record(find_only_blockage()), NOW - age)
    (over,) = find_ended_blockages(RecordLog([record]), [])
    log = RecordLog([record, make_record_from_event(over)])
    again = find_only_blockage({**ENTRY, "since": format_time(NOW)})

    assert log.may_announce(again, NOW) is may_announce
    log.add(build_blocked_record(again))
    assert not log.may_announce(again, NOW)
