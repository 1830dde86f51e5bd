"""Decides which node gets a hint that a budget opened, and when the hint is repeated. No I/O: time is an argument.

A hint is sent when an opening begins, not while it lasts (design rule 8). A hint without effect is repeated after
growing pauses, and only progress resets the pause (rule 9). If several nodes wait for one budget, only as many get a
hint as the budget admits pods, in turn. Their passes would otherwise compete for the same evictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MIN_SECONDS = 0.25
"""Minimum seconds between two hints about one budget to one node.

A budget that admits one pod often admits more soon after, and one pass evicts all of them. In a measurement with 0.3 s,
thirty pods under a budget of ten left quickly, even with a broker that runs many passes concurrently.
"""
TURN_SECONDS = 1.0
"""Seconds that a node has to use an eviction after a hint.

Then the next node gets a hint, and eventually the same node again.
"""
LONGEST_PAUSE = 60.0
"""Maximum seconds between two hints without effect; each pause is twice the previous one."""
DOUBLINGS = 6
"""Number of pauses that are shorter than the longest."""


class Room(NamedTuple):
    """Which evictions a budget admits for a node's waiting pods.

    `counted` evictions use up `disruptionsAllowed`; those of unready pods `beside` the count do not.
    """

    counted: bool = False
    beside: bool = False


NO_ROOM = Room()


class Told(NamedTuple):
    """One hint; `again` is the number of earlier hints without effect."""

    budget: str
    node: str
    again: int


@dataclass
class Claim:
    """The state of the hints about one budget to one node.

    Attributes:
        room: What the budget admits for the node's waiting pods.
        told: Time of the last hint.
        tells: Hints since a pod of the node last became terminating.
        left: Whether a pod of the node has gone since the last hint.
        quiet: No hint before this time, because a pass may still be running.
        once: Whether a hint is due whatever the budget admits.
    """

    room: Room = NO_ROOM
    told: float = -math.inf
    tells: int = 0
    left: bool = False
    quiet: float = -math.inf
    once: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether the budget admits evictions of either kind."""
        return any(self.room)

    def due(self) -> float:
        """Return when the node may get the next hint, regardless of other nodes."""
        if self.once:
            return self.told + MIN_SECONDS
        if not self.is_open:
            return math.inf
        if self.tells:
            return self.told + min(math.ldexp(TURN_SECONDS, min(self.tells - 1, DOUBLINGS)), LONGEST_PAUSE)
        return max(self.told + MIN_SECONDS, self.quiet)

    def holds(self, now: float) -> bool:
        """Return whether the node got a hint about a counted eviction and may still use it."""
        return self.room.counted and self.tells > 0 and now < self.told + TURN_SECONDS

    def show(self, room: Room) -> None:
        """Update what the budget admits for the node.

        An opening after a pod has left is a new opening, which resets the pauses. Any other is flapping, which does
        not.
        """
        was_open, self.room = self.is_open, room
        if was_open and not self.is_open:
            self.quiet = -math.inf
        if self.is_open and not was_open and self.left:
            self.tells, self.left = 0, False

    def hear(self, now: float) -> None:
        """Record that a hint is sent, so that a pass will start."""
        self.told, self.tells, self.left, self.once = now, self.tells + 1, False, False


class Turns:
    """The hint states of all budgets and nodes: `show`, `acted` and others update them, `take` returns due hints."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, Claim]] = {}
        self._allowed: dict[str, int] = {}
        self._passes: dict[str, float] = {}
        self._when: dict[
            str, float
        ] = {}  # cached result of `_next` per budget until it changes: there are many budgets, and pods change often

    def show(self, budget: str, node: str, room: Room | None, allowed: int) -> None:
        """Update what the budget admits for the node's waiting pods; `room` is None if it covers none of them.

        `allowed` is the number of pods that the budget admits for all nodes together.
        """
        if room is not None or node in self._claims.get(budget, {}):
            self._claim(budget, node).show(room or NO_ROOM)
            self._allowed[budget] = allowed

    def pass_begins(self, node: str, now: float) -> None:
        """Record that a pass over the node starts for another reason, which counts as a hint about all budgets."""
        self._passes[node] = now
        for budget in [budget for budget, claims in self._claims.items() if node in claims]:
            claim = self._claim(budget, node)
            claim.told, claim.tells, claim.left = now, max(claim.tells, 1), False

    def acted(self, budget: str, node: str, now: float) -> None:
        """Record that a pod of the node under this budget became terminating; the same pass may evict more."""
        claim = self._claim(budget, node)
        claim.tells, claim.quiet = 0, now + MIN_SECONDS if claim.is_open else -math.inf

    def left(self, budget: str, node: str) -> None:
        """Record that a pod of the node under this budget no longer exists."""
        self._claim(budget, node).left = True

    def relisted(self) -> None:
        """Reset the pauses of all hints, because openings may have been missed before the budgets were listed again."""
        for claims in self._claims.values():
            for claim in claims.values():
                claim.tells = min(claim.tells, 1)
        self._when.clear()

    def once(self, budget: str, node: str) -> None:
        """Request a hint whatever the count, because the budget no longer covers pods of the node or was deleted."""
        self._claim(budget, node).once = True

    def forget(self, node: str) -> None:
        """Forget a node whose watch has ended."""
        self._passes.pop(node, None)
        for budget in list(self._claims):
            if self._claims[budget].pop(node, None):
                self._when.pop(budget, None)
            if not self._claims[budget]:
                del self._claims[budget]
                self._allowed.pop(budget, None)

    def take(self, now: float) -> list[Told]:
        """Return the hints that are due, and record them as sent."""
        found: list[Told] = []
        for budget in self._claims:
            if self._when.get(budget, now) <= now:
                found += self._tell(budget, now)
                self._when[budget] = self._next(budget, now)
        return found

    def next(self, now: float) -> float:
        """Return when `take` will return a hint if nothing changes before; infinity if no hint is pending."""
        found = (self._when[each] if each in self._when else self._next(each, now) for each in self._claims)
        return min(found, default=math.inf)

    def _tell(self, budget: str, now: float) -> Iterator[Told]:
        """Yield the budget's due hints, first to the nodes whose last hint is oldest.

        Unready pods outside the count do not use up the evictions that the budget allows.
        """
        claims, slots = self._claims[budget], self._slots(budget, now)
        for node in sorted(claims, key=lambda name: (claims[name].told, name)):
            claim = claims[node]
            if claim.due() > now:
                continue
            if slots <= 0 and not (claim.once or claim.room.beside):
                continue
            slots -= claim.room.counted
            again = claim.tells
            claim.hear(now)
            yield Told(budget, node, again)

    def _slots(self, budget: str, now: float) -> int:
        """Return the evictions that the budget allows, minus those that nodes with a recent hint may still use."""
        return self._allowed.get(budget, 0) - sum(claim.holds(now) for claim in self._claims[budget].values())

    def _next(self, budget: str, now: float) -> float:
        claims = self._claims[budget].values()
        later = [claim.due() for claim in claims if claim.due() > now]
        if any(claim.due() <= now for claim in claims):  # they wait until another node's slot expires
            later += [claim.told + TURN_SECONDS for claim in claims if claim.holds(now)]
        return min(later, default=math.inf)

    def _claim(self, budget: str, node: str) -> Claim:
        """Return the state of the hints about this budget to this node, for an update; create it if it is new."""
        self._when.pop(budget, None)
        claims = self._claims.setdefault(budget, {})
        if node not in claims:
            told = self._passes.get(node)
            claims[node] = Claim() if told is None else Claim(told=told, tells=1)
        return claims[node]
