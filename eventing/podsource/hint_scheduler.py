"""Decides which node gets a hint that a PodDisruptionBudget (PDB) allows an eviction, and when to repeat the hint.

A hint is sent when a PDB opens, which means that it begins to allow evictions, and not while it stays open (design rule
8). A hint without effect is repeated with a growing delay, and only progress resets the delay (rule 9). If several
nodes wait for one PDB, only as many of them get a hint at a time as the PDB admits pods. Otherwise, the passes over
these nodes would compete for the same evictions. No I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

MIN_HINT_SECONDS = 0.25
"""Minimum time between two hints about one PodDisruptionBudget (PDB) to one node, in seconds.

A PDB that admits one pod often admits further pods soon after, and one pass evicts all of them. In a measurement with
0.3 s, thirty pods under a PDB of ten left quickly, even with a broker that runs many passes concurrently.
"""
SLOT_SECONDS = 1.0
"""Seconds after a hint for which an eviction that the PDB allows is reserved for the node (a slot).

After that time, the next node gets a hint, and eventually the same node again.
"""
MAX_BACKOFF_SECONDS = 60.0
"""Maximum seconds between two hints without effect; each delay is twice the previous one."""
MAX_DOUBLINGS = 6
"""Maximum number of times that the delay is doubled."""


class BudgetCapacity(NamedTuple):
    """The kinds of evictions that a PodDisruptionBudget admits for a node's waiting pods.

    `counted` evictions use up `disruptionsAllowed`; `uncounted` evictions, which are those of unready pods, do not.
    """

    counted: bool = False
    uncounted: bool = False


NO_CAPACITY = BudgetCapacity()


class DueHint(NamedTuple):
    """A hint about one PDB to one node; `repeats` is the number of earlier hints without effect."""

    budget: str
    node: str
    repeats: int


class HintState(Enum):
    """Whether a node's pods have changed since the last hint about one PodDisruptionBudget."""

    ANSWERED = "no hint was sent since a pod last became terminating"
    UNANSWERED = "a hint was sent, and no pod has become terminating or was removed since"
    POD_REMOVED = "a hint was sent, and a pod that was already terminating was removed since"


class HintEvent(Enum):
    """An event that may change a `HintState`."""

    HINTED = "a hint was sent"
    POD_EVICTED = "a pod became terminating"
    POD_GONE = "a pod no longer exists"
    BUDGET_OPENED = "the budget admits evictions, and did not before"


TRANSITIONS = {
    (HintState.ANSWERED, HintEvent.HINTED): HintState.UNANSWERED,
    (HintState.UNANSWERED, HintEvent.POD_EVICTED): HintState.ANSWERED,
    (HintState.UNANSWERED, HintEvent.POD_GONE): HintState.POD_REMOVED,
    (HintState.POD_REMOVED, HintEvent.HINTED): HintState.UNANSWERED,
    (HintState.POD_REMOVED, HintEvent.POD_EVICTED): HintState.ANSWERED,
    (HintState.POD_REMOVED, HintEvent.BUDGET_OPENED): HintState.ANSWERED,
}
"""The next state by state and event; other events do not change the state.

A PodDisruptionBudget that opens again although no pod has left is flapping: its hints stay unanswered, and the delays
keep growing.
"""


@dataclass
class HintHistory:
    """The hints about one PodDisruptionBudget (PDB) to one node, and what has happened since.

    Attributes:
        state: Whether the node's pods have changed since the last hint.
        capacity: The evictions that the PDB admits for the node's waiting pods.
        hinted_at: Time of the last hint.
        unanswered_hints: Number of hints since the state was last ANSWERED.
        quiet_until: Time before which no hint is sent, because a pass may still be running.
        is_forced: Whether a hint is due even if the PDB admits no pod.
    """

    state: HintState = HintState.ANSWERED
    capacity: BudgetCapacity = NO_CAPACITY
    hinted_at: float = -math.inf
    unanswered_hints: int = 0
    quiet_until: float = -math.inf
    is_forced: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether the PodDisruptionBudget admits evictions of either kind."""
        return any(self.capacity)

    def apply(self, event: HintEvent) -> None:
        """Change the state according to `TRANSITIONS`."""
        self.state = TRANSITIONS.get((self.state, event), self.state)
        if self.state is HintState.ANSWERED:
            self.unanswered_hints = 0

    def compute_due_time(self) -> float:
        """Return the earliest time of the next hint to the node, regardless of other nodes."""
        if self.is_forced:
            return self.hinted_at + MIN_HINT_SECONDS
        if not self.is_open:
            return math.inf
        if self.state is HintState.ANSWERED:
            return max(self.hinted_at + MIN_HINT_SECONDS, self.quiet_until)
        doublings = min(self.unanswered_hints - 1, MAX_DOUBLINGS)
        return self.hinted_at + min(SLOT_SECONDS * 2.0**doublings, MAX_BACKOFF_SECONDS)

    def reserves_eviction(self, now: float) -> bool:
        """Return whether a recent hint still reserves one of the PDB's allowed evictions for the node."""
        is_recent = self.state is not HintState.ANSWERED and now < self.hinted_at + SLOT_SECONDS
        return self.capacity.counted and is_recent

    def update_capacity(self, capacity: BudgetCapacity) -> None:
        """Update which evictions the PodDisruptionBudget admits for the node."""
        was_open, self.capacity = self.is_open, capacity
        if self.is_open and not was_open:
            self.apply(HintEvent.BUDGET_OPENED)
        if not self.is_open:
            self.quiet_until = -math.inf

    def record_hint(self, now: float) -> None:
        """Record that a hint was sent to the node at `now`."""
        self.hinted_at, self.is_forced = now, False
        self.unanswered_hints += 1
        self.apply(HintEvent.HINTED)

    def record_eviction(self, now: float) -> None:
        """Record that a pod became terminating; the same pass may evict more pods."""
        self.apply(HintEvent.POD_EVICTED)
        self.quiet_until = now + MIN_HINT_SECONDS if self.is_open else -math.inf


class HintScheduler:
    """The histories of PodSource's hints, by PodDisruptionBudget (PDB) and node.

    `update_capacity`, `record_eviction` and other methods update the histories; `take_due_hints` returns the due hints.
    """

    def __init__(self) -> None:
        self._histories: dict[str, dict[str, HintHistory]] = {}
        self._allowed_disruptions: dict[str, int] = {}
        self._next_due: dict[str, float] = {}
        """Cached result of `_compute_next_due_time` by PDB, because there may be many PDBs and pods change often."""

    def update_capacity(self, budget: str, node: str, capacity: BudgetCapacity | None, allowed: int) -> None:
        """Update which evictions the PDB admits for the node; `capacity` is None if it covers no waiting pod there.

        `allowed` is the number of pods that the PDB admits for all nodes together.
        """
        if capacity is not None or node in self._histories.get(budget, {}):
            self._get_history(budget, node).update_capacity(capacity or NO_CAPACITY)
            self._allowed_disruptions[budget] = allowed

    def record_eviction(self, budget: str, node: str, now: float) -> None:
        """Record that a pod on the node that the PodDisruptionBudget covers became terminating."""
        self._get_history(budget, node).record_eviction(now)

    def record_pod_gone(self, budget: str, node: str) -> None:
        """Record that a pod on the node that the PodDisruptionBudget covered no longer exists."""
        self._get_history(budget, node).apply(HintEvent.POD_GONE)

    def reset_after_relist(self) -> None:
        """Reset the delays between all hints, because PDBs may have opened unnoticed before they were listed again."""
        for histories in self._histories.values():
            for history in histories.values():
                history.unanswered_hints = min(history.unanswered_hints, 1)
        self._next_due.clear()

    def force_hint(self, budget: str, node: str) -> None:
        """Request a hint to the node, because the PDB was deleted or no longer covers pods on the node."""
        self._get_history(budget, node).is_forced = True

    def drop_node(self, node: str) -> None:
        """Forget the hints about a node whose pod watch has ended."""
        for budget in list(self._histories):
            if self._histories[budget].pop(node, None):
                self._next_due.pop(budget, None)
            if not self._histories[budget]:
                del self._histories[budget]
                self._allowed_disruptions.pop(budget, None)

    def take_due_hints(self, now: float) -> list[DueHint]:
        """Return the hints that are due, and record them as sent."""
        hints: list[DueHint] = []
        for budget in self._histories:
            if self._next_due.get(budget, now) <= now:
                hints += self._take_hints(budget, now)
                self._next_due[budget] = self._compute_next_due_time(budget, now)
        return hints

    def get_next_due_time(self, now: float) -> float:
        """Return the time of the next hint if nothing changes until then; infinity if there is none."""
        due_times = (
            self._next_due[budget] if budget in self._next_due else self._compute_next_due_time(budget, now)
            for budget in self._histories
        )
        return min(due_times, default=math.inf)

    def _take_hints(self, budget: str, now: float) -> Iterator[DueHint]:
        """Yield the PodDisruptionBudget's due hints, first to the nodes whose last hint is oldest.

        Evictions of unready pods are not counted, so they need none of the PDB's allowed evictions.
        """
        histories, slots = self._histories[budget], self._count_free_slots(budget, now)
        for node in sorted(histories, key=lambda name: (histories[name].hinted_at, name)):
            history = histories[node]
            if history.compute_due_time() > now:
                continue
            if slots <= 0 and not (history.is_forced or history.capacity.uncounted):
                continue
            slots -= history.capacity.counted
            repeats = history.unanswered_hints
            history.record_hint(now)
            yield DueHint(budget, node, repeats)

    def _count_free_slots(self, budget: str, now: float) -> int:
        """Return the number of the PDB's allowed evictions that no recent hint has reserved for a node."""
        return self._allowed_disruptions.get(budget, 0) - sum(
            history.reserves_eviction(now) for history in self._histories[budget].values()
        )

    def _compute_next_due_time(self, budget: str, now: float) -> float:
        histories = self._histories[budget].values()
        due_times = [history.compute_due_time() for history in histories if history.compute_due_time() > now]
        # A node whose hint is due is waiting for a free slot.
        if any(history.compute_due_time() <= now for history in histories):
            due_times += [history.hinted_at + SLOT_SECONDS for history in histories if history.reserves_eviction(now)]
        return min(due_times, default=math.inf)

    def _get_history(self, budget: str, node: str) -> HintHistory:
        """Return the history of hints about this PDB to this node, for an update; create it if it does not exist."""
        self._next_due.pop(budget, None)
        return self._histories.setdefault(budget, {}).setdefault(node, HintHistory())
