"""Decides which node gets a hint that a budget allows an eviction, and when the hint is repeated. No I/O, no clock.

A hint is sent when a budget opens, not while it stays open (design rule 8). A hint without effect is repeated after
growing pauses, and only progress resets the pause (rule 9). If several nodes wait for one budget, they get hints in
turn: only as many at a time as the budget admits pods. Otherwise the passes over these nodes would compete for the same
evictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MIN_HINT_SECONDS = 0.25
"""Minimum seconds between two hints about one budget to one node.

A budget that admits one pod often admits more soon after, and one pass evicts all of them. In a measurement with 0.3 s,
thirty pods under a budget of ten left quickly, even with a broker that runs many passes concurrently.
"""
SLOT_SECONDS = 1.0
"""Seconds after a hint for which the budget's allowed eviction is reserved for the node (a slot).

After that time the next node gets a hint, and eventually the same node again.
"""
MAX_BACKOFF_SECONDS = 60.0
"""Maximum seconds between two hints without effect; each pause is twice the previous one."""
MAX_DOUBLINGS = 6
"""The pause doubles at most this many times."""


class BudgetCapacity(NamedTuple):
    """Which evictions a budget admits for a node's waiting pods.

    `counted` evictions use up `disruptionsAllowed`; `uncounted` ones, those of unready pods, do not.
    """

    counted: bool = False
    uncounted: bool = False


NO_CAPACITY = BudgetCapacity()


class DueHint(NamedTuple):
    """One hint; `repeats` is the number of earlier hints without effect."""

    budget: str
    node: str
    repeats: int


@dataclass
class HintState:
    """The state of the hints that PodSource sends about one budget to one node.

    Attributes:
        capacity: What the budget admits for the node's waiting pods.
        hinted_at: Time of the last hint.
        unanswered_hints: Hints since a pod on the node last became terminating.
        has_pod_left: Whether a pod has left the node since the last hint.
        quiet_until: Time before which no hint is sent, because a pass may still be running.
        is_forced: Whether a hint is due even if the budget admits no pod.
    """

    capacity: BudgetCapacity = NO_CAPACITY
    hinted_at: float = -math.inf
    unanswered_hints: int = 0
    has_pod_left: bool = False
    quiet_until: float = -math.inf
    is_forced: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether the budget admits evictions of either kind."""
        return any(self.capacity)

    def compute_due_time(self) -> float:
        """Return the time from which the node may get the next hint about the budget, regardless of other nodes."""
        if self.is_forced:
            return self.hinted_at + MIN_HINT_SECONDS
        if not self.is_open:
            return math.inf
        if self.unanswered_hints:
            return self.hinted_at + min(
                math.ldexp(SLOT_SECONDS, min(self.unanswered_hints - 1, MAX_DOUBLINGS)), MAX_BACKOFF_SECONDS
            )
        return max(self.hinted_at + MIN_HINT_SECONDS, self.quiet_until)

    def holds_slot(self, now: float) -> bool:
        """Return whether an eviction that the budget allows is still reserved for the node after a recent hint."""
        return self.capacity.counted and self.unanswered_hints > 0 and now < self.hinted_at + SLOT_SECONDS

    def update_capacity(self, capacity: BudgetCapacity) -> None:
        """Update what the budget admits for the node.

        If the budget opens after a pod has left, the pauses are reset. If the budget opens again although no pod has
        left, it is flapping, and the pauses keep growing.
        """
        was_open, self.capacity = self.is_open, capacity
        if was_open and not self.is_open:
            self.quiet_until = -math.inf
        if self.is_open and not was_open and self.has_pod_left:
            self.unanswered_hints, self.has_pod_left = 0, False

    def record_hint(self, now: float) -> None:
        """Record that a hint is sent to the node, so that a pass of `evict` will start."""
        self.hinted_at, self.unanswered_hints, self.has_pod_left, self.is_forced = (
            now,
            self.unanswered_hints + 1,
            False,
            False,
        )


class HintScheduler:
    """The states of the hints that PodSource sends about all budgets to all nodes.

    `update_capacity`, `record_eviction` and other methods update the states; `take_due_hints` returns the due hints.
    """

    def __init__(self) -> None:
        self._states: dict[str, dict[str, HintState]] = {}
        self._allowed_disruptions: dict[str, int] = {}
        self._pass_times: dict[str, float] = {}
        self._next_due: dict[str, float] = {}
        """Budget → cached result of `_compute_next_due_time`, since there are many budgets and pods change often."""

    def update_capacity(self, budget: str, node: str, capacity: BudgetCapacity | None, allowed: int) -> None:
        """Update what the budget admits for the node's waiting pods; `capacity` is None if it covers no such pod.

        `allowed` is the number of pods that the budget admits for all nodes together.
        """
        if capacity is not None or node in self._states.get(budget, {}):
            self._get_state(budget, node).update_capacity(capacity or NO_CAPACITY)
            self._allowed_disruptions[budget] = allowed

    def record_pass_start(self, node: str, now: float) -> None:
        """Record that `evict` starts a pass over the node without a hint, which counts as a hint about each budget."""
        self._pass_times[node] = now
        for budget in [budget for budget, states in self._states.items() if node in states]:
            state = self._get_state(budget, node)
            state.hinted_at, state.unanswered_hints, state.has_pod_left = now, max(state.unanswered_hints, 1), False

    def record_eviction(self, budget: str, node: str, now: float) -> None:
        """Record that a pod became terminating on the node under this budget; the same pass may evict more pods."""
        state = self._get_state(budget, node)
        state.unanswered_hints, state.quiet_until = 0, now + MIN_HINT_SECONDS if state.is_open else -math.inf

    def record_pod_gone(self, budget: str, node: str) -> None:
        """Record that a pod that the budget covered no longer exists on the node."""
        self._get_state(budget, node).has_pod_left = True

    def reset_after_relist(self) -> None:
        """Reset the pauses between all hints: budgets may have opened unnoticed before they were listed again."""
        for states in self._states.values():
            for state in states.values():
                state.unanswered_hints = min(state.unanswered_hints, 1)
        self._next_due.clear()

    def force_hint(self, budget: str, node: str) -> None:
        """Request a hint to the node, because the budget was deleted or no longer covers pods on the node."""
        self._get_state(budget, node).is_forced = True

    def drop_node(self, node: str) -> None:
        """Forget a node whose watch has ended."""
        self._pass_times.pop(node, None)
        for budget in list(self._states):
            if self._states[budget].pop(node, None):
                self._next_due.pop(budget, None)
            if not self._states[budget]:
                del self._states[budget]
                self._allowed_disruptions.pop(budget, None)

    def take_due_hints(self, now: float) -> list[DueHint]:
        """Return the hints that are due, and record them as sent."""
        hints: list[DueHint] = []
        for budget in self._states:
            if self._next_due.get(budget, now) <= now:
                hints += self._take_hints(budget, now)
                self._next_due[budget] = self._compute_next_due_time(budget, now)
        return hints

    def get_next_due_time(self, now: float) -> float:
        """Return the time at which the next hint is due if nothing changes until then; infinity if there is none."""
        due_times = (
            self._next_due[budget] if budget in self._next_due else self._compute_next_due_time(budget, now)
            for budget in self._states
        )
        return min(due_times, default=math.inf)

    def _take_hints(self, budget: str, now: float) -> Iterator[DueHint]:
        """Yield the budget's due hints, first to the nodes whose last hint is oldest.

        Uncounted evictions, those of unready pods, do not use up the evictions that the budget allows.
        """
        states, slots = self._states[budget], self._count_free_slots(budget, now)
        for node in sorted(states, key=lambda name: (states[name].hinted_at, name)):
            state = states[node]
            if state.compute_due_time() > now:
                continue
            if slots <= 0 and not (state.is_forced or state.capacity.uncounted):
                continue
            slots -= state.capacity.counted
            repeats = state.unanswered_hints
            state.record_hint(now)
            yield DueHint(budget, node, repeats)

    def _count_free_slots(self, budget: str, now: float) -> int:
        """Return the number of evictions that the budget allows and that no recent hint has reserved for a node."""
        return self._allowed_disruptions.get(budget, 0) - sum(
            state.holds_slot(now) for state in self._states[budget].values()
        )

    def _compute_next_due_time(self, budget: str, now: float) -> float:
        states = self._states[budget].values()
        due_times = [state.compute_due_time() for state in states if state.compute_due_time() > now]
        # A node whose hint is due already waits for a free slot.
        if any(state.compute_due_time() <= now for state in states):
            due_times += [state.hinted_at + SLOT_SECONDS for state in states if state.holds_slot(now)]
        return min(due_times, default=math.inf)

    def _get_state(self, budget: str, node: str) -> HintState:
        """Return the state of the hints about this budget to this node, for an update; create a missing state."""
        self._next_due.pop(budget, None)
        states = self._states.setdefault(budget, {})
        if node not in states:
            pass_started_at = self._pass_times.get(node)
            states[node] = HintState()
            if pass_started_at is not None:
                states[node].hinted_at, states[node].unanswered_hints = pass_started_at, 1
        return states[node]
