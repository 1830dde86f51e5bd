"""Unit tests of which nodes get hints about an opened budget, and when, with artificial times."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from eventing.podsource.hint_scheduler import LONGEST_PAUSE, MIN_SECONDS, TURN_SECONDS, Room, Told, Turns
from tests.proofs import proves

SLOT, BESIDE = Room(counted=True), Room(beside=True)
A, B, C = "node-a", "node-b", "node-c"


def opened(turns: Turns, *nodes: str, allowed: int = 1, budget: str = "x/b") -> None:
    """Report that the budget admits evictions of pods on these nodes."""
    for node in nodes:
        turns.show(budget, node, SLOT, allowed)


def closed(turns: Turns, *nodes: str, budget: str = "x/b") -> None:
    """Report that pods of these nodes wait, and that the budget admits no evictions."""
    for node in nodes:
        turns.show(budget, node, Room(), 0)


def told(turns: Turns, now: float) -> list[str]:
    """Return the nodes for which a hint is due at this time."""
    return [hint.node for hint in turns.take(now)]


def moments(turns: Turns, start: float, end: float) -> list[tuple[float, str]]:
    """Return each hint up to `end` with its time, if nothing else changes."""
    found = [(start, node) for node in told(turns, start)]
    now = start
    while (now := turns.next(now)) <= end:
        found += [(now, node) for node in told(turns, now)]
    return found


@proves("NMO-6")
def test_an_opening_is_told_at_once_and_once() -> None:
    """Design rule 8: A hint is due when a budget opens, and not when its counts change."""
    turns = Turns()
    closed(turns, A)
    assert turns.next(0.0) == math.inf
    assert turns.take(0.0) == []

    opened(turns, A, allowed=1)
    assert turns.take(5.0) == [Told("x/b", A, 0)]

    opened(turns, A, allowed=4)
    assert turns.take(5.5) == []


def test_a_node_without_a_pod_that_waits_is_told_nothing() -> None:
    turns = Turns()
    turns.show("x/b", A, None, 5)

    assert turns.take(0.0) == []
    assert turns.next(0.0) == math.inf


def test_openings_close_together_keep_their_distance_and_none_is_lost() -> None:
    """Check that a second opening within the minimum interval gives its hint at the end of the interval.

    The node used the first opening, and the budget is still open at the end.
    """
    turns = Turns()
    opened(turns, A)
    assert told(turns, 10.0) == [A]
    closed(turns, A)
    turns.acted("x/b", A, 10.05)
    opened(turns, A)

    assert told(turns, 10.1) == []
    assert turns.next(10.1) == 10.0 + MIN_SECONDS
    assert told(turns, 10.0 + MIN_SECONDS) == [A]


def test_what_closes_before_its_time_comes_is_not_told() -> None:
    turns = Turns()
    opened(turns, A)
    turns.take(10.0)
    closed(turns, A)
    turns.acted("x/b", A, 10.05)
    opened(turns, A)
    turns.take(10.1)
    closed(turns, A)

    assert told(turns, 11.0) == []


def test_what_is_still_open_after_a_pass_is_told_when_the_pass_is_over() -> None:
    """Check that a budget that a pass leaves open gives a hint soon after the pass has evicted its last pod.

    While pods become terminating, the pass is still running and needs no hint.
    """
    turns = Turns()
    opened(turns, A, allowed=3)
    turns.take(0.0)
    for now in (0.1, 0.2, 0.3, 0.4):
        turns.acted("x/b", A, now)
        opened(turns, A, allowed=3)
        assert told(turns, now) == []

    assert moments(turns, 0.4, 0.9) == [(0.4 + MIN_SECONDS, A)]


def test_what_nobody_acts_on_is_told_again_with_doubling_pauses() -> None:
    """Design rule 9: A hint without effect is repeated after 1, 2, 4, ... up to 60 s, while the budget stays open."""
    turns = Turns()
    opened(turns, A)

    times = [now for now, _ in moments(turns, 100.0, 400.0)]

    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_day_of_telling_again_comes_to_no_harm() -> None:
    turns = Turns()
    opened(turns, A)

    times = [now for now, _ in moments(turns, 0.0, 100_000.0)]

    assert times[-1] - times[-2] == LONGEST_PAUSE


def test_hints_that_nobody_acts_on_are_numbered() -> None:
    """Check that hints without effect are numbered, so that their ids differ, and that progress resets the number."""
    turns = Turns()
    opened(turns, A)
    numbers = [turns.take(now)[0].again for now in (0.0, 1.0, 3.0)]
    turns.acted("x/b", A, 3.1)

    assert numbers == [0, 1, 2]
    assert turns.take(4.0) == [Told("x/b", A, 0)]


def test_a_pod_that_turns_terminating_ends_the_pauses() -> None:
    turns = Turns()
    opened(turns, A)
    for now in (0.0, 1.0, 3.0, 7.0):
        assert told(turns, now) == [A]
    turns.acted("x/b", A, 8.0)

    assert [now for now, _ in moments(turns, 8.0, 13.0)] == [8.25, 9.25, 11.25]


def test_a_budget_that_flaps_without_progress_is_no_storm() -> None:
    """Design rule 9: A flapping budget does not reset the pauses between hints without effect."""
    turns = Turns()
    hints = []
    for step in range(1200):
        (opened if step % 2 else closed)(turns, A)
        hints += told(turns, step / 10)

    assert len(hints) == 7  # in two minutes: at 0, 1, 3, 7, 15, 31 and 63 s, or slightly later


def test_an_opening_after_a_pod_left_is_a_new_one() -> None:
    """Check that an opening after a pod has left resets the pauses, as the budget may open for another pod.

    The pod was already terminating before the hints.
    """
    turns = Turns()
    opened(turns, A)
    for now in (0.0, 1.0, 3.0):
        turns.take(now)
    turns.left("x/b", A)
    assert told(turns, 3.4) == []  # the budget has not closed in between
    closed(turns, A)
    opened(turns, A)

    assert told(turns, 3.5) == [A]


def test_a_pod_that_left_another_node_is_no_progress_here() -> None:
    turns = Turns()
    opened(turns, A, B, allowed=2)
    turns.take(0.0)
    turns.left("x/b", B)
    turns.acted("x/b", B, 0.1)
    closed(turns, A, B)
    opened(turns, A, B, allowed=2)

    assert told(turns, 0.5) == [B]
    assert told(turns, 1.0) == [A]


def test_a_pass_that_begins_counts_as_told() -> None:
    """Check that the start of a pass counts as a hint about every budget, so that none is due for a second.

    This also applies to budgets that PodSource first sees after the start of the pass.
    """
    turns = Turns()
    opened(turns, A, budget="x/known")
    turns.pass_begins(A, 20.0)
    opened(turns, A, budget="x/new")

    assert turns.take(20.9) == []
    assert [(hint.budget, hint.again) for hint in turns.take(21.0)] == [("x/known", 1), ("x/new", 1)]


def test_a_pass_that_acts_is_told_of_the_next_opening_at_once() -> None:
    turns = Turns()
    turns.pass_begins(A, 20.0)
    opened(turns, A)
    turns.acted("x/b", A, 20.1)
    closed(turns, A)
    opened(turns, A)

    assert told(turns, 20.4) == [A]


def test_an_opening_long_after_the_pass_is_told_at_once() -> None:
    turns = Turns()
    turns.pass_begins(A, 20.0)
    closed(turns, A)
    assert turns.take(21.0) == []

    opened(turns, A)
    assert told(turns, 25.0) == [A]


def test_after_a_restart_what_is_open_is_told_at_once() -> None:
    """Check that open budgets give hints at once after a restart, because the new process has sent none."""
    turns = Turns()
    opened(turns, A)
    turns.relisted()

    assert told(turns, 0.0) == [A]


def test_after_a_relist_the_pauses_begin_anew() -> None:
    """Check that a relist resets the pauses, because openings may have been missed.

    At least a second is still between two hints without effect.
    """
    turns = Turns()
    opened(turns, A)
    for now in (0.0, 1.0, 3.0, 7.0):
        turns.take(now)
    turns.relisted()
    assert told(turns, 7.9) == []
    assert told(turns, 8.0) == [A]

    turns.relisted()
    assert [turns.next(8.0)] == [9.0]


@proves("NMO-6")
def test_a_budget_of_one_is_told_to_one_node_an_opening() -> None:
    """Check that a budget that admits one pod gives one hint per opening, in turn to the waiting nodes."""
    turns = Turns()
    order = []
    for number in range(6):
        opened(turns, A, B, C)
        (node,) = told(turns, number)
        order.append(node)
        closed(turns, A, B, C)
        turns.acted("x/b", node, number + 0.1)

    assert order == [A, B, C, A, B, C]


def test_a_turn_that_is_not_used_passes_on() -> None:
    """Check that an unused eviction passes to the next node after a second, and each node has its own pauses."""
    turns = Turns()
    opened(turns, A, B, C)

    found = moments(turns, 0.0, 6.0)

    assert found == [(0, A), (1, B), (2, C), (3, A), (4, B), (5, C), (6, A)]


def test_so_many_nodes_are_told_as_the_budget_lets_pods_go() -> None:
    """Check that as many nodes get hints as the budget admits pods.

    A node with a recent hint reserves one eviction for a second. An eviction is already part of the budget's counts.
    """
    turns = Turns()
    opened(turns, A, B, C, allowed=2)
    assert told(turns, 0.0) == [A, B]

    opened(turns, A, B, C, allowed=3)
    assert told(turns, 0.1) == [C]


def test_a_slot_that_was_used_is_nobodys_any_more() -> None:
    turns = Turns()
    opened(turns, A, B)
    assert told(turns, 0.0) == [A]
    turns.acted("x/b", A, 0.1)  # the budget is still open, since another pod became ready

    assert told(turns, 0.1) == [B]


def test_a_pass_on_its_way_holds_a_slot() -> None:
    """Check that a pass that is about to start reserves an eviction, as in a new maintenance."""
    turns = Turns()
    opened(turns, A, B)
    turns.pass_begins(A, 0.0)

    assert told(turns, 0.5) == []
    assert turns.next(0.5) == TURN_SECONDS
    assert told(turns, 1.0) == [B]


def test_places_beside_the_count_are_nobodys_turn() -> None:
    """Check that unready pods outside the count reserve no eviction, so that all their nodes get hints.

    A budget that is met admits them even if it allows no disruptions.
    """
    turns = Turns()
    for node in (A, B, C):
        turns.show("x/b", node, BESIDE, 0)

    assert told(turns, 0.0) == [A, B, C]


def test_budgets_do_not_wait_for_each_other() -> None:
    turns = Turns()
    opened(turns, A, B, budget="x/one")
    opened(turns, A, B, budget="x/two")

    assert [hint.budget for hint in turns.take(0.0)] == ["x/one", "x/two"]


def test_a_budget_that_lets_pods_out_of_its_hand_is_told_once() -> None:
    """Check that a budget that no longer covers the pods, or is deleted, gives one hint, which is not repeated."""
    turns = Turns()
    closed(turns, A)
    turns.once("x/b", A)
    turns.show("x/b", A, None, 0)

    assert moments(turns, 0.0, 500.0) == [(0.0, A)]


def test_a_budget_that_is_deleted_again_and_again_keeps_its_distance() -> None:
    turns = Turns()
    hints = []
    for step in range(100):
        turns.once("x/b", A)
        hints += told(turns, step / 100)

    assert len(hints) == 1 / MIN_SECONDS


def test_of_a_pass_that_has_just_begun_a_deletion_does_not_wait_a_second() -> None:
    """Check that the deletion of a budget gives a hint after the minimum interval, although a pass has just started.

    The pass may have read the budget before its deletion.
    """
    turns = Turns()
    closed(turns, A)
    turns.pass_begins(A, 0.0)
    turns.once("x/b", A)

    assert turns.next(0.1) == MIN_SECONDS
    assert told(turns, MIN_SECONDS) == [A]


def test_a_drained_node_is_forgotten() -> None:
    """Check that a drained node reserves no eviction, and that its next maintenance starts without earlier hints."""
    turns = Turns()
    opened(turns, A, B)
    assert told(turns, 0.0) == [A]
    turns.forget(A)
    assert told(turns, 0.1) == [B]
    turns.forget(B)
    assert turns.next(0.1) == math.inf

    opened(turns, A)
    assert told(turns, 0.2) == [A]


@given(st.lists(st.tuples(st.sampled_from("oca "), st.sampled_from([A, B])), max_size=60), st.integers(1, 2))
def test_whatever_happens_hints_are_few_and_openings_are_not_forgotten(
    happens: list[tuple[str, str]], allowed: int
) -> None:
    """Check that hints to a node keep the minimum interval, and that open budgets give hints soon after progress."""
    turns, hints, now = Turns(), dict[str, list[float]]({A: [], B: []}), 0.0
    for what, node in happens:
        now += 0.05
        if what == "o":
            opened(turns, node, allowed=allowed)
        elif what == "c":
            closed(turns, node)
        elif what == "a":
            turns.acted("x/b", node, now)
        for name in told(turns, now):
            hints[name].append(now)
    for node in (A, B):
        opened(turns, node, allowed=allowed)
        turns.acted("x/b", node, now)

    after = {node for _, node in moments(turns, now, now + 2.0)}

    assert after == {A, B}
    for times in hints.values():
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert all(gap > MIN_SECONDS - 1e-9 for gap in gaps)
