"""Unit tests for the event tree, which shows each recorded event below its cause."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.entries import Attempt, Entry
from eventing.journal.tree import Tree, build_trees, find_missing_cause_ids

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
START_TIME = datetime(2026, 1, 1, tzinfo=timezone.utc)
LATER_TIME = START_TIME + timedelta(hours=1)


def build_entry(seconds: float, event: BaseCloudEvent, *functions: str, **fields: Any) -> Entry:
    time = START_TIME + timedelta(seconds=seconds)
    attempts = (Attempt(event.get_source(), event.get_id(), name, time, 0.01, 204, **fields) for name in functions)
    return Entry(round(seconds * 1000), time, event, tuple(attempts))


def build_api_server_event(kind: str, name: str, **metadata: str) -> CloudEvent:
    attributes = {"id": f"{kind}-{name}", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": kind}
    return CloudEvent(attributes, {"metadata": {"name": name, **metadata}, "spec": {"nodeName": "node-1"}})


ADDED = build_api_server_event("NodeMaintenance", "nm", uid="uid-1")
BEGUN = build_event(events.MAINTENANCE_BEGUN, "begin", MAINTENANCE, "node-1", cause=ADDED)
CORDONED = build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "node-1", cause=BEGUN)
PODS_GONE = build_event(events.PODS_GONE, "podsource", MAINTENANCE, "node-1", seed="7")
TICK = CloudEvent({"id": "tick", "source": "/ping", "type": events.TICK}, {})
PENDING = build_event(events.MAINTENANCE_PENDING, "resync", MAINTENANCE, "node-1", cause=TICK)


def list_depths_and_types(tree: Tree) -> list[tuple[int, str]]:
    return [(depth, branch.entry.event.get_type()) for depth, branch in tree.iter_branches()]


def test_reply_is_shown_under_cause_and_hint_starts_branch() -> None:
    """Check that a reply is shown below its cause, and that a PodSource event, which has no cause, starts a branch."""
    entries = [
        build_entry(0, ADDED, "begin"),
        build_entry(0.1, BEGUN, "cordon", "status"),
        build_entry(0.3, CORDONED, "taint"),
        build_entry(1, PODS_GONE),
    ]

    (tree,) = build_trees(entries, (), LATER_TIME)

    assert (tree.uid, tree.name, tree.node) == ("uid-1", "nm", "node-1")
    assert list_depths_and_types(tree) == [
        (0, events.RESOURCE_ADDED),
        (1, events.MAINTENANCE_BEGUN),
        (2, events.NODE_CORDONED),
        (0, events.PODS_GONE),
    ]
    assert [branch.delay_seconds for _, branch in tree.iter_branches()] == [None, 0.1, 0.2, None]


def test_opened_budget_is_shown_under_last_report_of_blocked_pods() -> None:
    """Check that `budget.opened` is below the last `pods.evicted` before it, with the time since that report.

    Before the first `pods.evicted`, it is below `node.tainted`, or starts a branch if there is none. A `budget.opened`
    whose effect was recorded before it starts a branch, because it cannot be its own effect.
    """
    early, first, second, third = (
        build_event(events.BUDGET_OPENED, "podsource", MAINTENANCE, "node-1", seed=str(number)) for number in range(4)
    )
    tainted = build_event(events.NODE_TAINTED, "taint", MAINTENANCE, "node-1", cause=CORDONED)
    report = build_event(events.PODS_EVICTED, "evict", MAINTENANCE, "node-1", cause=tainted)
    second_report = build_event(events.PODS_EVICTED, "evict", MAINTENANCE, "node-1", cause=second)
    third_report = build_event(events.PODS_EVICTED, "evict", MAINTENANCE, "node-1", cause=third)
    recorded = (early, tainted, first, report, second, second_report, third_report, third)

    (tree,) = build_trees([build_entry(number, event) for number, event in enumerate(recorded)], (), LATER_TIME)

    shown = [(depth, branch.entry.event, branch.delay_seconds) for depth, branch in tree.iter_branches()]
    assert shown == [
        (0, early, None),
        (0, tainted, None),
        (1, first, 1.0),
        (1, report, 2.0),
        (2, second, 1.0),
        (3, second_report, 1.0),
        (0, third, None),
        (1, third_report, 0.0),
    ]


def test_opened_budget_is_not_shown_under_event_of_tick() -> None:
    """Check that `budget.opened` starts a branch if `resync` has emitted the only `node.tainted` because of a tick."""
    repeated = build_event(events.NODE_TAINTED, "resync", MAINTENANCE, "node-1", cause=TICK)
    opened = build_event(events.BUDGET_OPENED, "podsource", MAINTENANCE, "node-1", seed="1")

    (tree,) = build_trees([build_entry(0, repeated), build_entry(5, opened)], (), LATER_TIME)

    shown = [(depth, branch.entry.event, branch.delay_seconds) for depth, branch in tree.iter_branches()]
    assert shown == [(0, repeated, None), (0, opened, None)]


def test_subscriber_without_attempt_is_reported_as_missing() -> None:
    """Check that a subscriber without a recorded attempt is reported as missing, even if it was called in a replay.

    A function that was killed after its reply has no recorded attempt; it is reported both as missing and as replied.
    """
    entries = [
        build_entry(0, ADDED, "begin", replay="r1"),
        build_entry(0.1, BEGUN, "status"),
        build_entry(0.2, CORDONED),
    ]

    (tree,) = build_trees(entries, (), LATER_TIME)

    assert [branch.missing_functions for _, branch in tree.iter_branches()] == [("begin",), ("cordon",), ("taint",)]
    assert [branch.replied_functions for _, branch in tree.iter_branches()] == [("begin",), ("cordon",), ()]


def test_reply_about_different_object_than_cause_counts_as_reply() -> None:
    """Check that an event about a maintenance counts as a reply to a tick, although the tick has no maintenance."""
    trees = build_trees([build_entry(0, TICK), build_entry(0.1, PENDING, "begin")], (), LATER_TIME)

    (unowned,) = [tree for tree in trees if not tree.uid]
    assert unowned.roots[0].replied_functions == ("resync",)


def test_missing_attempts_on_recent_event_are_not_reported() -> None:
    """Check that no missing attempts are reported for a recent event, because attempts are recorded with a delay."""
    (tree,) = build_trees([build_entry(0, ADDED)], (), START_TIME + timedelta(seconds=1))

    assert [branch.missing_functions for _, branch in tree.iter_branches()] == [()]


def test_event_with_unknown_cause_starts_branch() -> None:
    """Check that an event whose cause is not in the tree starts a branch that names the cause.

    For example, a maintenance's tree contains no ticks, because a tick belongs to no maintenance.
    """
    entries = [build_entry(3, PENDING, "begin")]
    assert find_missing_cause_ids(entries) == ("tick",)

    (tree,) = build_trees(entries, [build_entry(1, TICK, "resync")], LATER_TIME)

    (branch,) = tree.roots
    assert (branch.external_cause_type, branch.delay_seconds) == (events.TICK, 2.0)


def test_events_without_maintenance_are_in_last_tree() -> None:
    """Check that events without a maintenance, such as ticks, are in the last tree."""
    trees = build_trees(
        [build_entry(0, TICK, "resync"), build_entry(1, ADDED, "begin"), build_entry(2, PENDING, "begin")],
        (),
        LATER_TIME,
    )

    assert [tree.uid for tree in trees] == ["uid-1", ""]
    assert list_depths_and_types(trees[1]) == [(0, events.TICK)]
    assert trees[0].roots[1].external_cause_type == events.TICK


def test_dead_letter_is_shown_in_branch_of_undelivered_event() -> None:
    """X-6: a dead letter is in its event's branch, or forms its own branch if the event was never recorded."""
    failure = {"knativeerrordest": "http://cordon/", "knativeerrorcode": "500"}
    dead = CloudEvent({**BEGUN.get_attributes(), **failure}, BEGUN.get_data())

    (with_event,), (without_event,) = (
        build_trees(entries, (), LATER_TIME)
        for entries in ([build_entry(0, BEGUN), build_entry(1, dead)], [build_entry(1, dead)])
    )

    for tree in (with_event, without_event):
        (branch,) = tree.roots
        assert [dead_letter.destination for dead_letter in branch.dead_letters] == ["http://cordon/"]
    assert with_event.roots[0].missing_functions == ("cordon", "status")


def test_causal_chain_may_exceed_recursion_limit() -> None:
    """Check that a chain of causes may exceed Python's recursion limit; each batch of evictions causes the next."""
    chain = [BEGUN]
    for _ in range(3000):
        chain.append(build_event(events.PODS_EVICTED, "evict", MAINTENANCE, "node-1", cause=chain[-1]))

    (tree,) = build_trees([build_entry(number, event) for number, event in enumerate(chain)], (), LATER_TIME)

    assert max(depth for depth, _ in tree.iter_branches()) == 3000


def test_event_that_is_its_own_cause_is_shown() -> None:
    """Check that an event that is its own cause is shown, because an invalid cause must not hide an event."""
    self_caused = CloudEvent({**BEGUN.get_attributes(), "cause": BEGUN.get_id()}, BEGUN.get_data())

    (tree,) = build_trees([build_entry(0, self_caused)], (), LATER_TIME)

    assert len(tree.roots) == 1
