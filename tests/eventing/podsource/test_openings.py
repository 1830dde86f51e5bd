"""Unit tests of which node gets a hint after a change of a budget or a pod, with artificial times."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from eventing.podsource.budget_tracker import BudgetTracker
from eventing.podsource.draining_node import DrainingNode
from kube.paths import Object
from tests.kube import samples
from tests.kube.samples import make_maintenance, make_pod

DB_LABELS, WEB_LABELS = {"app": "db"}, {"app": "web"}
NODE_NAME = "node-1"


class NodeFixture:
    """One node with a begun maintenance, and methods that report changes as the watches would."""

    def __init__(self, *pods: Object) -> None:
        self.node = DrainingNode(NODE_NAME)
        self.node.maintenances["nm-uid"] = make_maintenance()
        self.node.is_synced = True
        for pod in pods:
            self.node.update_pod(pod)
        self.tracker = BudgetTracker({NODE_NAME: self.node})
        self._versions = itertools.count(1)

    def build_budget(self, name: str = "b", **fields: Any) -> Object:
        """Build a budget with the next resourceVersion."""
        budget = samples.make_budget(name, **fields)
        budget["metadata"]["resourceVersion"] = str(next(self._versions))
        return budget

    def report_listed(self, *budgets: Object) -> NodeFixture:
        for budget in budgets:
            self.tracker.update_budget(budget)
        self.tracker.mark_listed()
        return self

    def list_due_budgets(self, now: float) -> list[str]:
        """Return the budgets about which the node gets a hint at this time."""
        return [hint.budget for hint in self.tracker.take_due_hints(now)]


def build_db_pod(name: str = "one", **more: Any) -> Object:
    return make_pod(name, labels=DB_LABELS, **more)


def test_no_hint_before_all_budgets_are_listed() -> None:
    """Check that no hint is due before all budgets are listed, since another budget may cover the same pod."""
    fixture = NodeFixture(build_db_pod())
    fixture.tracker.update_budget(fixture.build_budget("one", allowed=1))
    assert fixture.list_due_budgets(0.0) == []

    fixture.report_listed(fixture.build_budget("two", allowed=1))
    assert fixture.list_due_budgets(1.0) == []


def test_opening_gives_hint_and_changed_counts_do_not() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed(fixture.build_budget(allowed=0))
    assert fixture.list_due_budgets(0.0) == []

    fixture.tracker.update_budget(fixture.build_budget(allowed=1))
    assert fixture.list_due_budgets(1.0) == ["ns/b"]
    for number in range(2, 9):
        fixture.tracker.update_budget(fixture.build_budget(allowed=number))
        assert fixture.list_due_budgets(1.0 + number / 10) == []


def test_deletion_of_second_budget_gives_hints() -> None:
    """Check that the deletion of one of two budgets over a pod gives hints about both.

    A pod with two budgets cannot be evicted. After the deletion, only the other budget applies.
    """
    fixture = NodeFixture(build_db_pod())
    first, second = fixture.build_budget("one", allowed=1), fixture.build_budget("two", allowed=1)
    fixture.report_listed(first, second)
    assert fixture.list_due_budgets(0.0) == []

    fixture.tracker.remove_budget(second)
    assert sorted(fixture.list_due_budgets(1.0)) == ["ns/one", "ns/two"]


def test_second_budget_blocks_pod() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed(fixture.build_budget("one", allowed=1))
    fixture.tracker.update_budget(fixture.build_budget("two", allowed=1))

    assert fixture.list_due_budgets(1.0) == []


def test_new_selector_gives_one_hint_for_freed_pods() -> None:
    """Check that a changed selector gives one hint to nodes whose pods it no longer covers, and none later."""
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed(fixture.build_budget(allowed=0))
    fixture.tracker.update_budget(fixture.build_budget(allowed=0, selector={"matchLabels": WEB_LABELS}, observed=0))

    assert fixture.list_due_budgets(0.0) == ["ns/b"]
    fixture.tracker.update_budget(fixture.build_budget(allowed=5, selector={"matchLabels": WEB_LABELS}))
    assert fixture.list_due_budgets(100.0) == []


def test_budget_of_another_namespace_gives_no_hint() -> None:
    fixture = NodeFixture(build_db_pod())
    other = fixture.build_budget(allowed=1, namespace="other")
    fixture.report_listed(other)
    fixture.tracker.remove_budget(other)

    assert fixture.list_due_budgets(0.0) == []


def test_pod_with_changed_labels_waits_for_new_budget() -> None:
    """Check that a pod with changed labels waits for its new budget, and that its old one gives no hint."""
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed(
        fixture.build_budget("db", allowed=0),
        fixture.build_budget("web", allowed=1, selector={"matchLabels": WEB_LABELS}),
    )
    fixture.list_due_budgets(0.0)
    changed = make_pod("one", labels=WEB_LABELS)
    before = fixture.node.update_pod(changed)
    assert before is not None
    for state in (before, changed):
        fixture.tracker.mark_pod_changed(fixture.node, state)

    assert fixture.list_due_budgets(1.0) == ["ns/web"]
    fixture.tracker.update_budget(fixture.build_budget("db", allowed=1))
    assert fixture.list_due_budgets(1.1) == []


@pytest.mark.parametrize(
    "now", [build_db_pod(phase="Succeeded", ready=False), make_pod("one", labels=WEB_LABELS)], ids=["ended", "labels"]
)
def test_freed_pod_gives_hint_at_once(now: Object) -> None:
    """Check that a pod that no budget covers any more gives a hint, after it has ended or its labels have changed.

    A virt-launcher pod ends, for example, after its VM has migrated.
    """
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed(fixture.build_budget(allowed=0))
    assert fixture.list_due_budgets(0.0) == []
    before = fixture.node.update_pod(now)
    assert before is not None
    fixture.tracker.hint_if_freed(fixture.node, before, now)

    assert fixture.list_due_budgets(1.0) == ["ns/b"]
    assert fixture.list_due_budgets(100.0) == []


def test_terminating_or_covered_pod_gives_no_hint() -> None:
    """Check that a terminating pod gives no hint when it ends, and neither does a pod that a budget still covers."""
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed(fixture.build_budget(allowed=0))
    for now in (
        build_db_pod(phase="Failed", ready=False, deletionTimestamp="2026-01-01T00:00:00Z"),
        build_db_pod(ready=False),
    ):
        fixture.tracker.hint_if_freed(fixture.node, build_db_pod(), now)
        assert fixture.list_due_budgets(1.0) == []


def test_unsynced_node_gets_hint_once_synced() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.node.is_synced = False
    fixture.report_listed(fixture.build_budget(allowed=1))
    assert fixture.list_due_budgets(0.0) == []

    fixture.node.is_synced = True
    fixture.tracker.mark_node_changed(fixture.node)
    assert fixture.list_due_budgets(1.0) == ["ns/b"]


def test_terminating_pod_is_progress_for_each_budget() -> None:
    """Check that a pod that becomes terminating counts as progress for each budget over it, even if it had ended."""
    fixture = NodeFixture(build_db_pod("one"), build_db_pod("two"))
    fixture.report_listed(fixture.build_budget(allowed=2))
    assert fixture.list_due_budgets(0.0) == ["ns/b"]

    fixture.tracker.record_eviction(fixture.node, build_db_pod("one", phase="Succeeded"), 0.1)
    assert fixture.tracker.get_next_due_time(0.1) == 0.35
    assert fixture.list_due_budgets(0.35) == ["ns/b"]


def test_version_is_the_highest_of_all() -> None:
    """Check that the version is the highest of all budgets, since a list is not ordered by version.

    A hint must not name an older version than PodSource has seen.
    """
    fixture = NodeFixture()
    newer, older = fixture.build_budget("a"), fixture.build_budget("b")
    newer["metadata"]["resourceVersion"], older["metadata"]["resourceVersion"] = "100", "99"
    fixture.report_listed(newer, older)

    assert fixture.tracker.latest_version == 100


def test_clear_drops_all_hints() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed(fixture.build_budget(allowed=1))
    fixture.tracker.drop_node(fixture.node)
    fixture.tracker.clear()

    assert fixture.list_due_budgets(100.0) == []
