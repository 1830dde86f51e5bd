"""Unit tests, with simulated time, for the hints to a node after a change to a PodDisruptionBudget or a pod."""

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
    """A node whose maintenance has begun, and its budget tracker, to which tests report changes as watches would."""

    def __init__(self, *pods: Object) -> None:
        self.node = DrainingNode(NODE_NAME)
        self.node.maintenances["nm-uid"] = make_maintenance()
        self.node.is_synced = True
        for pod in pods:
            self.node.update_pod(pod)
        self.tracker = BudgetTracker({NODE_NAME: self.node})
        self._versions = itertools.count(1)

    def build_budget(self, name: str = "b", **fields: Any) -> Object:
        """Build a PodDisruptionBudget with the next resourceVersion."""
        budget = samples.make_budget(name, **fields)
        budget["metadata"]["resourceVersion"] = str(next(self._versions))
        return budget

    def report_listed_budgets(self, *budgets: Object) -> NodeFixture:
        for budget in budgets:
            self.tracker.update_budget(budget)
        self.tracker.mark_budgets_listed()
        return self

    def take_budgets_with_due_hint(self, now: float) -> list[str]:
        """Take the hints that are due at `now`, and return the names of the PDBs that the hints are about."""
        return [hint.budget for hint in self.tracker.take_due_hints(now)]


def build_db_pod(name: str = "one", **fields: Any) -> Object:
    return make_pod(name, labels=DB_LABELS, **fields)


def test_no_hint_is_due_before_all_budgets_are_listed() -> None:
    """Check that no hint is due before all PDBs are listed, because another PDB may cover the same pod."""
    fixture = NodeFixture(build_db_pod())
    fixture.tracker.update_budget(fixture.build_budget("one", allowed=1))
    assert fixture.take_budgets_with_due_hint(0.0) == []

    fixture.report_listed_budgets(fixture.build_budget("two", allowed=1))
    assert fixture.take_budgets_with_due_hint(1.0) == []


def test_hint_is_due_if_budget_opens_but_not_if_counts_change() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed_budgets(fixture.build_budget(allowed=0))
    assert fixture.take_budgets_with_due_hint(0.0) == []

    fixture.tracker.update_budget(fixture.build_budget(allowed=1))
    assert fixture.take_budgets_with_due_hint(1.0) == ["ns/b"]
    for number in range(2, 9):
        fixture.tracker.update_budget(fixture.build_budget(allowed=number))
        assert fixture.take_budgets_with_due_hint(1.0 + number / 10) == []


def test_hints_are_due_if_second_budget_is_deleted() -> None:
    """Check that hints about both PDBs are due if one of two PDBs that cover a pod is deleted.

    A pod that two PDBs cover cannot be evicted. After the deletion, only the remaining PDB applies.
    """
    fixture = NodeFixture(build_db_pod())
    first, second = fixture.build_budget("one", allowed=1), fixture.build_budget("two", allowed=1)
    fixture.report_listed_budgets(first, second)
    assert fixture.take_budgets_with_due_hint(0.0) == []

    fixture.tracker.remove_budget(second)
    assert sorted(fixture.take_budgets_with_due_hint(1.0)) == ["ns/one", "ns/two"]


def test_no_hint_is_due_if_second_budget_covers_pod() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed_budgets(fixture.build_budget("one", allowed=1))
    fixture.tracker.update_budget(fixture.build_budget("two", allowed=1))

    assert fixture.take_budgets_with_due_hint(1.0) == []


def test_one_hint_is_due_for_pods_that_budget_no_longer_selects() -> None:
    """Check that one hint is due for a node whose pods a PDB no longer covers after a change of its selector."""
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed_budgets(fixture.build_budget(allowed=0))
    fixture.tracker.update_budget(fixture.build_budget(allowed=0, selector={"matchLabels": WEB_LABELS}, observed=0))

    assert fixture.take_budgets_with_due_hint(0.0) == ["ns/b"]
    fixture.tracker.update_budget(fixture.build_budget(allowed=5, selector={"matchLabels": WEB_LABELS}))
    assert fixture.take_budgets_with_due_hint(100.0) == []


def test_no_hint_is_due_if_budget_in_another_namespace_changes() -> None:
    fixture = NodeFixture(build_db_pod())
    other = fixture.build_budget(allowed=1, namespace="other")
    fixture.report_listed_budgets(other)
    fixture.tracker.remove_budget(other)

    assert fixture.take_budgets_with_due_hint(0.0) == []


def test_pod_with_changed_labels_waits_for_new_budget() -> None:
    """Check that only the PDB that selects a pod's changed labels causes hints, not the previous PDB."""
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed_budgets(
        fixture.build_budget("db", allowed=0),
        fixture.build_budget("web", allowed=1, selector={"matchLabels": WEB_LABELS}),
    )
    fixture.take_budgets_with_due_hint(0.0)
    relabeled_pod = make_pod("one", labels=WEB_LABELS)
    before = fixture.node.update_pod(relabeled_pod)
    assert before is not None
    for pod_version in (before, relabeled_pod):
        fixture.tracker.mark_pod_changed(fixture.node, pod_version)

    assert fixture.take_budgets_with_due_hint(1.0) == ["ns/web"]
    fixture.tracker.update_budget(fixture.build_budget("db", allowed=1))
    assert fixture.take_budgets_with_due_hint(1.1) == []


@pytest.mark.parametrize(
    "changed_pod",
    [build_db_pod(phase="Succeeded", ready=False), make_pod("one", labels=WEB_LABELS)],
    ids=["completed", "labels changed"],
)
def test_hint_is_due_immediately_for_pod_that_budget_no_longer_covers(changed_pod: Object) -> None:
    """Check that a hint is due if a pod has completed, or if no PDB covers its changed labels.

    For example, a virt-launcher pod completes after its VM has migrated.
    """
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed_budgets(fixture.build_budget(allowed=0))
    assert fixture.take_budgets_with_due_hint(0.0) == []
    before = fixture.node.update_pod(changed_pod)
    assert before is not None
    fixture.tracker.request_hint_if_uncovered(fixture.node, before, changed_pod)

    assert fixture.take_budgets_with_due_hint(1.0) == ["ns/b"]
    assert fixture.take_budgets_with_due_hint(100.0) == []


def test_no_hint_is_due_for_terminating_pod_or_pod_with_budget() -> None:
    """Check that no hint is due if a terminating pod completes, or if a PDB still covers the changed pod."""
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed_budgets(fixture.build_budget(allowed=0))
    for changed_pod in (
        build_db_pod(phase="Failed", ready=False, deletionTimestamp="2026-01-01T00:00:00Z"),
        build_db_pod(ready=False),
    ):
        fixture.tracker.request_hint_if_uncovered(fixture.node, build_db_pod(), changed_pod)
        assert fixture.take_budgets_with_due_hint(1.0) == []


def test_hint_is_due_once_pods_of_node_are_listed() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.node.is_synced = False
    fixture.report_listed_budgets(fixture.build_budget(allowed=1))
    assert fixture.take_budgets_with_due_hint(0.0) == []

    fixture.node.is_synced = True
    fixture.tracker.mark_node_changed(fixture.node)
    assert fixture.take_budgets_with_due_hint(1.0) == ["ns/b"]


def test_next_hint_is_due_soon_after_eviction_of_pod() -> None:
    """Check that the next hint about a PDB is due soon after the eviction of one of its pods, even a completed pod."""
    fixture = NodeFixture(build_db_pod("one"), build_db_pod("two"))
    fixture.report_listed_budgets(fixture.build_budget(allowed=2))
    assert fixture.take_budgets_with_due_hint(0.0) == ["ns/b"]

    fixture.tracker.record_eviction(fixture.node, build_db_pod("one", phase="Succeeded"), 0.1)
    assert fixture.tracker.get_next_due_time(0.1) == 0.35
    assert fixture.take_budgets_with_due_hint(0.35) == ["ns/b"]


def test_latest_version_is_highest_resource_version_of_budgets() -> None:
    """Check that `latest_version` is the highest resourceVersion of all PDBs, which are listed in any order.

    A hint must not contain an older resourceVersion than one that PodSource has already received.
    """
    fixture = NodeFixture()
    newer, older = fixture.build_budget("a"), fixture.build_budget("b")
    newer["metadata"]["resourceVersion"], older["metadata"]["resourceVersion"] = "100", "99"
    fixture.report_listed_budgets(newer, older)

    assert fixture.tracker.latest_version == 100


def test_clear_discards_all_pending_hints() -> None:
    fixture = NodeFixture(build_db_pod())
    fixture.report_listed_budgets(fixture.build_budget(allowed=1))
    fixture.tracker.drop_node(fixture.node)
    fixture.tracker.clear()

    assert fixture.take_budgets_with_due_hint(100.0) == []
