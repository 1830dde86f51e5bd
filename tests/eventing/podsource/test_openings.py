"""Which change of a budget or a pod concerns which node, on plain dicts and at made-up times."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from eventing.podsource.draining_node import DrainingNode
from eventing.podsource.openings import Openings
from kube.paths import Object
from tests.kube import samples
from tests.kube.samples import maintenance, pod

DB, WEB = {"app": "db"}, {"app": "web"}
NAME = "node-1"


class Desk:
    """One node whose maintenance has begun, and what the watches would say."""

    def __init__(self, *pods: Object) -> None:
        self.node = DrainingNode(NAME)
        self.node.maintenances["nm-uid"] = maintenance()
        self.node.synced = True
        for each in pods:
            self.node.put(each)
        self.openings = Openings({NAME: self.node})
        self._versions = itertools.count(1)

    def budget(self, name: str = "b", **fields: Any) -> Object:
        """A budget as it is now."""
        item = samples.budget(name, **fields)
        item["metadata"]["resourceVersion"] = str(next(self._versions))
        return item

    def listed(self, *budgets: Object) -> Desk:
        for each in budgets:
            self.openings.put(each)
        self.openings.listed()
        return self

    def told(self, now: float) -> list[str]:
        """The budgets that the node is told of."""
        return [hint.budget for hint in self.openings.take(now)]


def db(name: str = "one", **more: Any) -> Object:
    return pod(name, labels=DB, **more)


def test_before_all_budgets_are_known_nothing_is_told() -> None:
    """A second budget may be over the same pod."""
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
    """Two budgets over a pod let nobody go; by the deletion of one the other counts."""
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
    """Once: what the budget says after that is about other pods."""
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
    """The one that it leaves has nobody left to tell."""
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
    """It has run to its end, as a launcher whose machine has left, or it is somebody else's by its labels."""
    desk = Desk(db())
    desk.listed(desk.budget(allowed=0))
    assert desk.told(0.0) == []
    before = desk.node.put(now)
    assert before is not None
    desk.openings.pod_freed(desk.node, before, now)

    assert desk.told(1.0) == ["ns/b"]
    assert desk.told(100.0) == []


def test_a_pod_that_ends_while_it_is_deleted_is_nobodys_affair() -> None:
    """Nor one that is still kept: its budget says when it may go."""
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
    """Also one that has run to its end, which no budget counts any more."""
    desk = Desk(db("one"), db("two"))
    desk.listed(desk.budget(allowed=2))
    assert desk.told(0.0) == ["ns/b"]

    desk.openings.pod_acted(desk.node, db("one", phase="Succeeded"), 0.1)
    assert desk.openings.next(0.1) == 0.35
    assert desk.told(0.35) == ["ns/b"]


def test_the_version_is_the_newest_of_all() -> None:
    """A list comes in the order of names; a hint speaks of no older state than was seen."""
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
