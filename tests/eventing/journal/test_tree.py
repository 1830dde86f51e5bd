"""Unit tests of the tree of causes and effects."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference, event
from eventing.journal.entries import Attempt, Entry
from eventing.journal.tree import Tree, trees_of, unknown_causes

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
LATER = START + timedelta(hours=1)


def at(seconds: float, of: BaseCloudEvent, *functions: str, **more: Any) -> Entry:
    when = START + timedelta(seconds=seconds)
    runs = (Attempt(of.get_source(), of.get_id(), name, when, 0.01, 204, **more) for name in functions)
    return Entry(round(seconds * 1000), when, of, tuple(runs))


def of_the_api_server(kind: str, name: str, **metadata: str) -> CloudEvent:
    attributes = {"id": f"{kind}-{name}", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": kind}
    return CloudEvent(attributes, {"metadata": {"name": name, **metadata}, "spec": {"nodeName": "node-1"}})


ADDED = of_the_api_server("NodeMaintenance", "nm", uid="uid-1")
BEGUN = event(events.MAINTENANCE_BEGUN, "begin", MINE, "node-1", cause=ADDED)
CORDONED = event(events.NODE_CORDONED, "cordon", MINE, "node-1", cause=BEGUN)
GONE = event(events.PODS_GONE, "podsource", MINE, "node-1", seed="7")
TICK = CloudEvent({"id": "tick", "source": "/ping", "type": events.TICK}, {})
FOUND = event(events.MAINTENANCE_FOUND, "resync", MINE, "node-1", cause=TICK)


def shape(tree: Tree) -> list[tuple[int, str]]:
    return [(depth, branch.entry.event.get_type()) for depth, branch in tree.branches()]


def test_an_answer_hangs_under_what_it_answers_and_a_hint_under_the_maintenance() -> None:
    """Check that replies are below their cause, and that PodSource's events, which have no cause, start a branch."""
    entries = [at(0, ADDED, "begin"), at(0.1, BEGUN, "cordon", "status"), at(0.3, CORDONED, "taint"), at(1, GONE)]

    (tree,) = trees_of(entries, (), LATER)

    assert (tree.uid, tree.name, tree.node) == ("uid-1", "nm", "node-1")
    assert shape(tree) == [
        (0, events.RESOURCE_ADDED),
        (1, events.MAINTENANCE_BEGUN),
        (2, events.NODE_CORDONED),
        (0, events.PODS_GONE),
    ]
    assert [branch.after for _, branch in tree.branches()] == [None, 0.1, 0.2, None]


def test_what_takes_an_event_and_has_no_run_is_missing() -> None:
    """Check that a subscriber without an attempt is missing; replays and other functions' attempts do not count.

    A function with a reply but without an attempt was killed after its reply, so it counts as answered.
    """
    entries = [at(0, ADDED, "begin", replay="r1"), at(0.1, BEGUN, "status"), at(0.2, CORDONED)]

    (tree,) = trees_of(entries, (), LATER)

    assert [branch.missing for _, branch in tree.branches()] == [("begin",), ("cordon",), ("taint",)]
    assert [branch.answered for _, branch in tree.branches()] == [("begin",), ("cordon",), ()]


def test_who_replied_about_something_else_answered_too() -> None:
    """Check that replies about other objects count, as a tick is answered with replies about each maintenance."""
    trees = trees_of([at(0, TICK), at(0.1, FOUND, "begin")], (), LATER)

    (of_none,) = [tree for tree in trees if not tree.uid]
    assert of_none.roots[0].answered == ("resync",)


def test_a_run_may_be_told_a_moment_later() -> None:
    """Check that an attempt of a recent event is not missing yet, since attempts are recorded with a delay."""
    (tree,) = trees_of([at(0, ADDED)], (), START + timedelta(seconds=1))

    assert [branch.missing for _, branch in tree.branches()] == [()]


def test_a_cause_that_is_elsewhere_is_named() -> None:
    """Check that an unknown cause is listed, and that its effect starts a branch that names the cause.

    A tick does not belong to a maintenance, so the tree does not contain it.
    """
    entries = [at(3, FOUND, "begin")]
    assert unknown_causes(entries) == ("tick",)

    (tree,) = trees_of(entries, [at(1, TICK, "resync")], LATER)

    (branch,) = tree.roots
    assert (branch.cause, branch.after) == (events.TICK, 2.0)


def test_events_of_no_maintenance_come_last() -> None:
    """Check that events without a maintenance, such as ticks, are in the last tree."""
    trees = trees_of([at(0, TICK, "resync"), at(1, ADDED, "begin"), at(2, FOUND, "begin")], (), LATER)

    assert [tree.uid for tree in trees] == ["uid-1", ""]
    assert shape(trees[1]) == [(0, events.TICK)]
    assert trees[0].roots[1].cause == events.TICK


def test_a_dead_letter_is_told_at_the_event_that_it_was() -> None:
    """X-6: A dead letter is part of its event's branch, or a branch of its own if the event was never recorded."""
    failure = {"knativeerrordest": "http://cordon/", "knativeerrorcode": "500"}
    dead = CloudEvent({**BEGUN.get_attributes(), **failure}, BEGUN.get_data())

    (with_it,), (alone,) = (trees_of(found, (), LATER) for found in ([at(0, BEGUN), at(1, dead)], [at(1, dead)]))

    for tree in (with_it, alone):
        (branch,) = tree.roots
        assert [letter.destination for letter in branch.dead_letters] == ["http://cordon/"]
    assert with_it.roots[0].missing == ("cordon", "status")


def test_a_chain_may_be_longer_than_the_stack() -> None:
    """Check that a chain of causes may be longer than Python's stack; each batch of evictions causes the next."""
    chain = [BEGUN]
    for _ in range(3000):
        chain.append(event(events.PODS_EVICTED, "evict", MINE, "node-1", cause=chain[-1]))

    (tree,) = trees_of([at(number, one) for number, one in enumerate(chain)], (), LATER)

    assert max(depth for depth, _ in tree.branches()) == 3000


def test_an_event_that_names_itself_as_cause_is_shown() -> None:
    """Check that an event that names itself as its cause is shown, so that an invalid cause hides no event."""
    own = CloudEvent({**BEGUN.get_attributes(), "cause": BEGUN.get_id()}, BEGUN.get_data())

    (tree,) = trees_of([at(0, own)], (), LATER)

    assert len(tree.roots) == 1
