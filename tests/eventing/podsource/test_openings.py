"""Unit tests of which node gets a hint after a change of a budget or a pod, with artificial times."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from eventing.podsource.draining_node import DrainingNode
from eventing.podsource.budget_tracker import Openings
from kube.paths import Object
from tests.kube import samples
from tests.kube.samples import maintenance, pod

DB, WEB = {"app": "db"}, {"app": "web"}
NAME = "node-1"


class Desk:
    """One node with a begun maintenance, and methods that report changes as the watches would."""

    def __init__(self, *pods: Object) -> None:
        self.node = DrainingNode(NAME)
        self.node.maintenances["nm-uid"] = maintenance()
        self.node.synced = True
        for each in pods:
            self.node.put(each)
        self.openings = Openings({NAME: self.node})
        self._versions = itertools.count(1)

    def budget(self, name: str = "b", **fields: Any) -> Object:
        """Build a budget with the next resourceVersion."""
        item = samples.budget(name, **fields)
        item["metadata"]["resourceVersion"] = str(next(self._versions))
        return item

    def listed(self, *budgets: Object) -> Desk:
        for each in budgets:
            self.openings.put(each)
        self.openings.listed()
        return self

    def told(self, now: float) -> list[str]:
        """Return the budgets about which the node gets a hint at this time."""
        return [hint.budget for hint in self.openings.take(now)]


def db(name: str = "one", **more: Any) -> Object:
    return pod(name, labels=DB, **more)


def test_before_all_budgets_are_known_nothing_is_told() -> None:
    """Check that no hint is due before all budgets are listed, since another budget may cover the same pod."""
    desk = Desk(db())
    desk.openings.put(desk.budget("one", allowed=1))
    assert desk.told(0.0) == []

    desk.listed(desk.budget("two", allowed=1))
    assert desk.told(1.0) == []


def test_an_open_budget_is_told_and_its_counts_are_not() -> None:
    desk = Desk(db())
    desk.listed(desk.budget(allowed=0))
    assert desk.told(0.0) == []

    desk.openings.put(desk.budget(allowed=1))
    assert desk.told(1.0) == ["ns/b"]
    for number in range(2, 9):
        desk.openings.put(desk.budget(allowed=number))
        assert desk.told(1.0 + number / 10) == []


def test_a_budget_beside_it_that_goes_opens_this_one() -> None:
    """Check that the deletion of one of two budgets over a pod gives hints about both.

    A pod with two budgets cannot be evicted. After the deletion, only the other budget applies.
    """
    desk = Desk(db())
    one, two = desk.budget("one", allowed=1), desk.budget("two", allowed=1)
    desk.listed(one, two)
    assert desk.told(0.0) == []

    desk.openings.drop(two)
    assert sorted(desk.told(1.0)) == ["ns/one", "ns/two"]


def test_a_budget_that_comes_beside_it_closes_it() -> None:
    desk = Desk(db())
    desk.listed(desk.budget("one", allowed=1))
    desk.openings.put(desk.budget("two", allowed=1))

    assert desk.told(1.0) == []


def test_a_new_selector_is_told_to_those_it_lets_go() -> None:
    """Check that a changed selector gives one hint to nodes whose pods it no longer covers, and none later."""
    desk = Desk(db())
    desk.listed(desk.budget(allowed=0))
    desk.openings.put(desk.budget(allowed=0, selector={"matchLabels": WEB}, observed=0))

    assert desk.told(0.0) == ["ns/b"]
    desk.openings.put(desk.budget(allowed=5, selector={"matchLabels": WEB}))
    assert desk.told(100.0) == []


def test_a_budget_of_another_namespace_is_nobodys_affair() -> None:
    desk = Desk(db())
    other = desk.budget(allowed=1, namespace="other")
    desk.listed(other)
    desk.openings.drop(other)

    assert desk.told(0.0) == []


def test_a_pod_whose_labels_change_waits_for_another_budget() -> None:
    """Check that a pod with changed labels waits for its new budget, and that its old one gives no hint."""
    desk = Desk(db())
    desk.listed(desk.budget("db", allowed=0), desk.budget("web", allowed=1, selector={"matchLabels": WEB}))
    desk.told(0.0)
    changed = pod("one", labels=WEB)
    before = desk.node.put(changed)
    assert before is not None
    for state in (before, changed):
        desk.openings.pod_changed(desk.node, state)

    assert desk.told(1.0) == ["ns/web"]
    desk.openings.put(desk.budget("db", allowed=1))
    assert desk.told(1.1) == []


@pytest.mark.parametrize("now", [db(phase="Succeeded", ready=False), pod("one", labels=WEB)], ids=["ended", "labels"])
def test_a_pod_that_no_budget_keeps_any_more_is_told_at_once(now: Object) -> None:
    """Check that a pod that no budget covers any more gives a hint, after it has ended or its labels have changed.

    A virt-launcher pod ends, for example, after its VM has migrated.
    """
    desk = Desk(db())
    desk.listed(desk.budget(allowed=0))
    assert desk.told(0.0) == []
    before = desk.node.put(now)
    assert before is not None
    desk.openings.pod_freed(desk.node, before, now)

    assert desk.told(1.0) == ["ns/b"]
    assert desk.told(100.0) == []


def test_a_pod_that_ends_while_it_is_deleted_is_nobodys_affair() -> None:
    """Check that a terminating pod gives no hint when it ends, and neither does a pod that a budget still covers."""
    desk = Desk(db())
    desk.listed(desk.budget(allowed=0))
    for now in (db(phase="Failed", ready=False, deletionTimestamp="2026-01-01T00:00:00Z"), db(ready=False)):
        desk.openings.pod_freed(desk.node, db(), now)
        assert desk.told(1.0) == []


def test_a_node_that_is_not_ours_yet_is_told_when_it_is() -> None:
    desk = Desk(db())
    desk.node.synced = False
    desk.listed(desk.budget(allowed=1))
    assert desk.told(0.0) == []

    desk.node.synced = True
    desk.openings.node_changed(desk.node)
    assert desk.told(1.0) == ["ns/b"]


def test_a_pod_that_acts_counts_for_every_budget_over_it() -> None:
    """Check that a pod that becomes terminating counts as progress for each budget over it, even if it had ended."""
    desk = Desk(db("one"), db("two"))
    desk.listed(desk.budget(allowed=2))
    assert desk.told(0.0) == ["ns/b"]

    desk.openings.pod_acted(desk.node, db("one", phase="Succeeded"), 0.1)
    assert desk.openings.next(0.1) == 0.35
    assert desk.told(0.35) == ["ns/b"]


def test_the_version_is_the_newest_of_all() -> None:
    """Check that the version is the highest of all budgets, since a list is not ordered by version.

    A hint must not name an older version than PodSource has seen.
    """
    desk = Desk()
    newer, older = desk.budget("a"), desk.budget("b")
    newer["metadata"]["resourceVersion"], older["metadata"]["resourceVersion"] = "100", "99"
    desk.listed(newer, older)

    assert desk.openings.version == 100


def test_when_the_last_drain_is_over_nothing_is_left() -> None:
    desk = Desk(db())
    desk.listed(desk.budget(allowed=1))
    desk.openings.forget(desk.node)
    desk.openings.clear()

    assert desk.told(100.0) == []
