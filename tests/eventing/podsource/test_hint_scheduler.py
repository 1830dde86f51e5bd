"""Unit tests of `HintScheduler` with simulated time: when each node gets a hint about a PDB that allows evictions."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from eventing.podsource.hint_scheduler import (
    MAX_BACKOFF_SECONDS,
    MIN_HINT_SECONDS,
    BudgetCapacity,
    DueHint,
    HintScheduler,
)
from tests.proofs import proves

COUNTED_CAPACITY, UNCOUNTED_CAPACITY = BudgetCapacity(counted=True), BudgetCapacity(uncounted=True)
NODE_A, NODE_B, NODE_C = "node-a", "node-b", "node-c"


def report_open_budget(scheduler: HintScheduler, *nodes: str, allowed: int = 1, budget: str = "x/b") -> None:
    """Report to the scheduler that the PodDisruptionBudget allows evictions of pods on these nodes."""
    for node in nodes:
        scheduler.update_capacity(budget, node, COUNTED_CAPACITY, allowed)


def report_exhausted_budget(scheduler: HintScheduler, *nodes: str, budget: str = "x/b") -> None:
    """Report to the scheduler that pods on these nodes wait for the PodDisruptionBudget, which allows no evictions."""
    for node in nodes:
        scheduler.update_capacity(budget, node, BudgetCapacity(), 0)


def take_nodes_with_due_hint(scheduler: HintScheduler, now: float) -> list[str]:
    """Take the hints that are due at `now`, and return their nodes."""
    return [hint.node for hint in scheduler.take_due_hints(now)]


def list_hint_times(scheduler: HintScheduler, start: float, end: float) -> list[tuple[float, str]]:
    """Take all hints that become due up to `end`, and return the time and node of each hint."""
    hint_times = [(start, node) for node in take_nodes_with_due_hint(scheduler, start)]
    now = start
    while (now := scheduler.get_next_due_time(now)) <= end:
        hint_times += [(now, node) for node in take_nodes_with_due_hint(scheduler, now)]
    return hint_times


@proves("NMO-6")
def test_one_hint_is_due_when_budget_opens() -> None:
    """Design rule 8: a hint is due when a PodDisruptionBudget begins to allow evictions, not when its counts change."""
    scheduler = HintScheduler()
    report_exhausted_budget(scheduler, NODE_A)
    assert scheduler.get_next_due_time(0.0) == math.inf
    assert scheduler.take_due_hints(0.0) == []

    report_open_budget(scheduler, NODE_A, allowed=1)
    assert scheduler.take_due_hints(5.0) == [DueHint("x/b", NODE_A, 0)]

    report_open_budget(scheduler, NODE_A, allowed=4)
    assert scheduler.take_due_hints(5.5) == []


def test_no_hint_is_due_for_node_without_waiting_pod() -> None:
    scheduler = HintScheduler()
    scheduler.update_capacity("x/b", NODE_A, None, 5)

    assert scheduler.take_due_hints(0.0) == []
    assert scheduler.get_next_due_time(0.0) == math.inf


def test_hints_about_successive_budget_openings_keep_minimum_interval() -> None:
    """Check that a hint is due at the end of the minimum interval if a PDB opens twice within the interval.

    A pod was evicted after the first opening, and the PDB allows an eviction at the end of the interval.
    """
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)
    assert take_nodes_with_due_hint(scheduler, 10.0) == [NODE_A]
    report_exhausted_budget(scheduler, NODE_A)
    scheduler.record_eviction("x/b", NODE_A, 10.05)
    report_open_budget(scheduler, NODE_A)

    assert take_nodes_with_due_hint(scheduler, 10.1) == []
    assert scheduler.get_next_due_time(10.1) == 10.0 + MIN_HINT_SECONDS
    assert take_nodes_with_due_hint(scheduler, 10.0 + MIN_HINT_SECONDS) == [NODE_A]


def test_delayed_hint_is_discarded_if_budget_is_exhausted() -> None:
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)
    scheduler.take_due_hints(10.0)
    report_exhausted_budget(scheduler, NODE_A)
    scheduler.record_eviction("x/b", NODE_A, 10.05)
    report_open_budget(scheduler, NODE_A)
    scheduler.take_due_hints(10.1)
    report_exhausted_budget(scheduler, NODE_A)

    assert take_nodes_with_due_hint(scheduler, 11.0) == []


def test_hint_is_due_if_budget_is_still_open_after_evict_pass() -> None:
    """Check that a hint is due soon after the last eviction of an `evict` pass if the PDB still allows evictions.

    No hint is due while the pass is still running, that is, while pods become terminating.
    """
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A, allowed=3)
    scheduler.take_due_hints(0.0)
    for now in (0.1, 0.2, 0.3, 0.4):
        scheduler.record_eviction("x/b", NODE_A, now)
        report_open_budget(scheduler, NODE_A, allowed=3)
        assert take_nodes_with_due_hint(scheduler, now) == []

    assert list_hint_times(scheduler, 0.4, 0.9) == [(0.4 + MIN_HINT_SECONDS, NODE_A)]


def test_hint_without_effect_is_repeated_with_exponential_backoff() -> None:
    """Design rule 9: a hint without effect is repeated after 1, 2, 4, ... up to 60 s while the PDB allows evictions."""
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)

    times = [now for now, _ in list_hint_times(scheduler, 100.0, 400.0)]

    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_backoff_stays_at_maximum_for_a_day() -> None:
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)

    times = [now for now, _ in list_hint_times(scheduler, 0.0, 100_000.0)]

    assert times[-1] - times[-2] == MAX_BACKOFF_SECONDS


def test_repeated_hints_are_numbered() -> None:
    """Check that repeated hints are numbered, so that their ids differ, and that an eviction resets the number."""
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)
    repeats = [scheduler.take_due_hints(now)[0].repeats for now in (0.0, 1.0, 3.0)]
    scheduler.record_eviction("x/b", NODE_A, 3.1)

    assert repeats == [0, 1, 2]
    assert scheduler.take_due_hints(4.0) == [DueHint("x/b", NODE_A, 0)]


def test_terminating_pod_resets_backoff() -> None:
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)
    for now in (0.0, 1.0, 3.0, 7.0):
        assert take_nodes_with_due_hint(scheduler, now) == [NODE_A]
    scheduler.record_eviction("x/b", NODE_A, 8.0)

    assert [now for now, _ in list_hint_times(scheduler, 8.0, 13.0)] == [8.25, 9.25, 11.25]


def test_flapping_budget_does_not_reset_backoff() -> None:
    """Design rule 9: a PodDisruptionBudget that flaps does not reset the backoff between hints without effect."""
    scheduler = HintScheduler()
    hints = []
    for step in range(1200):
        (report_open_budget if step % 2 else report_exhausted_budget)(scheduler, NODE_A)
        hints += take_nodes_with_due_hint(scheduler, step / 10)

    assert len(hints) == 7  # The hints are due at 0, 1, 3, 7, 15, 31 and 63 s, or slightly later.


def test_budget_opening_after_pod_left_resets_backoff() -> None:
    """Check that the backoff is reset if a PDB opens after a pod has left, because another pod may now be evicted.

    The pod was already terminating before the first hint.
    """
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)
    for now in (0.0, 1.0, 3.0):
        scheduler.take_due_hints(now)
    scheduler.record_pod_gone("x/b", NODE_A)
    assert take_nodes_with_due_hint(scheduler, 3.4) == []  # The budget has not closed since the last hint.
    report_exhausted_budget(scheduler, NODE_A)
    report_open_budget(scheduler, NODE_A)

    assert take_nodes_with_due_hint(scheduler, 3.5) == [NODE_A]


def test_pod_that_left_another_node_does_not_reset_backoff() -> None:
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A, NODE_B, allowed=2)
    scheduler.take_due_hints(0.0)
    scheduler.record_pod_gone("x/b", NODE_B)
    scheduler.record_eviction("x/b", NODE_B, 0.1)
    report_exhausted_budget(scheduler, NODE_A, NODE_B)
    report_open_budget(scheduler, NODE_A, NODE_B, allowed=2)

    assert take_nodes_with_due_hint(scheduler, 0.5) == [NODE_B]
    assert take_nodes_with_due_hint(scheduler, 1.0) == [NODE_A]


def test_hint_about_open_budget_is_due_after_restart() -> None:
    """Check that hints about PDBs that allow evictions are due immediately after a restart of PodSource.

    The new process has not sent any hints.
    """
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)
    scheduler.reset_after_relist()

    assert take_nodes_with_due_hint(scheduler, 0.0) == [NODE_A]


def test_relist_resets_backoff() -> None:
    """Check that relisting the PDBs resets the backoff, because the watch may have missed changes.

    Hints without effect are still at least one second apart.
    """
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A)
    for now in (0.0, 1.0, 3.0, 7.0):
        scheduler.take_due_hints(now)
    scheduler.reset_after_relist()
    assert take_nodes_with_due_hint(scheduler, 7.9) == []
    assert take_nodes_with_due_hint(scheduler, 8.0) == [NODE_A]

    scheduler.reset_after_relist()
    assert [scheduler.get_next_due_time(8.0)] == [9.0]


@proves("NMO-6")
def test_one_hint_is_due_per_opening_of_budget_that_admits_one_pod() -> None:
    """Check that each opening of a PDB that allows one eviction causes one hint, to the waiting nodes in turn."""
    scheduler = HintScheduler()
    order = []
    for number in range(6):
        report_open_budget(scheduler, NODE_A, NODE_B, NODE_C)
        (node,) = take_nodes_with_due_hint(scheduler, number)
        order.append(node)
        report_exhausted_budget(scheduler, NODE_A, NODE_B, NODE_C)
        scheduler.record_eviction("x/b", node, number + 0.1)

    assert order == [NODE_A, NODE_B, NODE_C, NODE_A, NODE_B, NODE_C]


def test_next_node_gets_hint_if_node_evicts_no_pod_for_a_second() -> None:
    """Check that the next node gets a hint if a node evicts no pod within a second; each node has its own backoff."""
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A, NODE_B, NODE_C)

    hint_times = list_hint_times(scheduler, 0.0, 6.0)

    assert hint_times == [(0, NODE_A), (1, NODE_B), (2, NODE_C), (3, NODE_A), (4, NODE_B), (5, NODE_C), (6, NODE_A)]


def test_number_of_hinted_nodes_equals_number_of_admitted_pods() -> None:
    """Check that as many nodes get hints as the PDB allows evictions.

    A hint reserves one eviction for a node for a second. The PDB's counts already include completed evictions.
    """
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A, NODE_B, NODE_C, allowed=2)
    assert take_nodes_with_due_hint(scheduler, 0.0) == [NODE_A, NODE_B]

    report_open_budget(scheduler, NODE_A, NODE_B, NODE_C, allowed=3)
    assert take_nodes_with_due_hint(scheduler, 0.1) == [NODE_C]


def test_completed_eviction_is_not_reserved() -> None:
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A, NODE_B)
    assert take_nodes_with_due_hint(scheduler, 0.0) == [NODE_A]
    scheduler.record_eviction("x/b", NODE_A, 0.1)  # The budget stays open because another pod became ready.

    assert take_nodes_with_due_hint(scheduler, 0.1) == [NODE_B]


def test_evictions_of_unready_pods_are_not_reserved() -> None:
    """Check that no evictions of unready pods are reserved, so that all nodes with such pods get hints.

    A PDB with enough healthy pods allows evictions of unready pods even if it allows no disruptions.
    """
    scheduler = HintScheduler()
    for node in (NODE_A, NODE_B, NODE_C):
        scheduler.update_capacity("x/b", node, UNCOUNTED_CAPACITY, 0)

    assert take_nodes_with_due_hint(scheduler, 0.0) == [NODE_A, NODE_B, NODE_C]


def test_hints_about_different_budgets_are_independent() -> None:
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A, NODE_B, budget="x/one")
    report_open_budget(scheduler, NODE_A, NODE_B, budget="x/two")

    assert [hint.budget for hint in scheduler.take_due_hints(0.0)] == ["x/one", "x/two"]


def test_one_hint_is_due_if_budget_no_longer_covers_pods() -> None:
    """Check that exactly one hint is due if a PDB is deleted or no longer covers the pods."""
    scheduler = HintScheduler()
    report_exhausted_budget(scheduler, NODE_A)
    scheduler.force_hint("x/b", NODE_A)
    scheduler.update_capacity("x/b", NODE_A, None, 0)

    assert list_hint_times(scheduler, 0.0, 500.0) == [(0.0, NODE_A)]


def test_hints_about_repeatedly_deleted_budget_keep_minimum_interval() -> None:
    scheduler = HintScheduler()
    hints = []
    for step in range(100):
        scheduler.force_hint("x/b", NODE_A)
        hints += take_nodes_with_due_hint(scheduler, step / 100)

    assert len(hints) == 1 / MIN_HINT_SECONDS


def test_drained_node_reserves_no_eviction() -> None:
    """Check that a drained node reserves no eviction, and that its next maintenance starts without earlier hints."""
    scheduler = HintScheduler()
    report_open_budget(scheduler, NODE_A, NODE_B)
    assert take_nodes_with_due_hint(scheduler, 0.0) == [NODE_A]
    scheduler.drop_node(NODE_A)
    assert take_nodes_with_due_hint(scheduler, 0.1) == [NODE_B]
    scheduler.drop_node(NODE_B)
    assert scheduler.get_next_due_time(0.1) == math.inf

    report_open_budget(scheduler, NODE_A)
    assert take_nodes_with_due_hint(scheduler, 0.2) == [NODE_A]


@given(st.lists(st.tuples(st.sampled_from("oca "), st.sampled_from([NODE_A, NODE_B])), max_size=60), st.integers(1, 2))
def test_hints_keep_minimum_interval_and_no_budget_opening_is_lost(
    actions: list[tuple[str, str]], allowed: int
) -> None:
    """Check that hints to a node keep the minimum interval, and that a hint is due soon after each eviction."""
    scheduler, hints, now = HintScheduler(), dict[str, list[float]]({NODE_A: [], NODE_B: []}), 0.0
    for action, node in actions:
        now += 0.05
        if action == "o":
            report_open_budget(scheduler, node, allowed=allowed)
        elif action == "c":
            report_exhausted_budget(scheduler, node)
        elif action == "a":
            scheduler.record_eviction("x/b", node, now)
        for name in take_nodes_with_due_hint(scheduler, now):
            hints[name].append(now)
    for node in (NODE_A, NODE_B):
        report_open_budget(scheduler, node, allowed=allowed)
        scheduler.record_eviction("x/b", node, now)

    after = {node for _, node in list_hint_times(scheduler, now, now + 2.0)}

    assert after == {NODE_A, NODE_B}
    for times in hints.values():
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(gap > MIN_HINT_SECONDS - 1e-9 for gap in gaps)
