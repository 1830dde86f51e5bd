"""Cause and effect, on entries made for it."""

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
    """PodSource's events have no cause: they begin a branch of their own, in the order of arrival."""
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
    """A replay is no run; another function's run is no excuse. Whoever replied did run, and was killed behind that."""
    entries = [at(0, ADDED, "begin", replay="r1"), at(0.1, BEGUN, "status"), at(0.2, CORDONED)]

    (tree,) = trees_of(entries, (), LATER)

    assert [branch.missing for _, branch in tree.branches()] == [("begin",), ("cordon",), ("taint",)]
    assert [branch.answered for _, branch in tree.branches()] == [("begin",), ("cordon",), ()]


def test_who_replied_about_something_else_answered_too() -> None:
    """As a tick is answered: about each maintenance, whose tree is another."""
    trees = trees_of([at(0, TICK), at(0.1, FOUND, "begin")], (), LATER)

    (of_none,) = [tree for tree in trees if not tree.uid]
    assert of_none.roots[0].answered == ("resync",)


def test_a_run_may_be_told_a_moment_later() -> None:
    """Nothing is missing yet that arrived just now."""
    (tree,) = trees_of([at(0, ADDED)], (), START + timedelta(seconds=1))

    assert [branch.missing for _, branch in tree.branches()] == [()]


def test_a_cause_that_is_elsewhere_is_named() -> None:
    """A tick is no event of a maintenance: what it led to begins a branch, and says so; it is not shown for it."""
    entries = [at(3, FOUND, "begin")]
    assert unknown_causes(entries) == ("tick",)

    (tree,) = trees_of(entries, [at(1, TICK, "resync")], LATER)

    (branch,) = tree.roots
    assert (branch.cause, branch.after) == (events.TICK, 2.0)


def test_events_of_no_maintenance_come_last() -> None:
    """Ticks, and nodes that nobody maintains."""
    trees = trees_of([at(0, TICK, "resync"), at(1, ADDED, "begin"), at(2, FOUND, "begin")], (), LATER)

    assert [tree.uid for tree in trees] == ["uid-1", ""]
    assert shape(trees[1]) == [(0, events.TICK)]
    assert trees[0].roots[1].cause == events.TICK


def test_a_dead_letter_is_told_at_the_event_that_it_was() -> None:
    """X-6: and alone, when that was never recorded."""
    failure = {"knativeerrordest": "http://cordon/", "knativeerrorcode": "500"}
    dead = CloudEvent({**BEGUN.get_attributes(), **failure}, BEGUN.get_data())

    (with_it,), (alone,) = (trees_of(found, (), LATER) for found in ([at(0, BEGUN), at(1, dead)], [at(1, dead)]))

    for tree in (with_it, alone):
        (branch,) = tree.roots
        assert [letter.destination for letter in branch.dead_letters] == ["http://cordon/"]
    assert with_it.roots[0].missing == ("cordon", "status")


def test_a_chain_may_be_longer_than_the_stack() -> None:
    """Each batch of pods is caused by the one before it."""
    chain = [BEGUN]
    for _ in range(3000):
        chain.append(event(events.PODS_EVICTED, "evict", MINE, "node-1", cause=chain[-1]))

    (tree,) = trees_of([at(number, one) for number, one in enumerate(chain)], (), LATER)

    assert max(depth for depth, _ in tree.branches()) == 3000


def test_an_event_that_names_itself_as_cause_is_shown() -> None:
    """Nobody's mistake hides an event."""
    own = CloudEvent({**BEGUN.get_attributes(), "cause": BEGUN.get_id()}, BEGUN.get_data())

    (tree,) = trees_of([at(0, own)], (), LATER)

    assert len(tree.roots) == 1
