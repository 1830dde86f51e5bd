"""Whose turn it is to be told that a budget opened, and when to say it again. Pure: the time is always given.

An opening is told when it begins, not while it lasts (design rule 8). What nobody acts on is told again, with growing
pauses; only progress ends the pause (rule 9). Of several nodes behind one budget only as many are told as it lets
pods go, in turn: their passes would take the slots from each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MIN_SECONDS = 0.25
"""Between two hints of a budget to a node: an opening is seldom alone, and a pass takes what opened meanwhile along.
At 0.3 s thirty pods behind a budget of ten left fast, on a broker that calls many passes at once, too."""
TURN_SECONDS = 1.0
"""A node that was told has this long to use a slot; then the next one is told, and in the end the same one again."""
LONGEST_PAUSE = 60.0
"""Seconds between two hints that nobody acts on; each pause is twice the last."""
DOUBLINGS = 6
"""So many pauses are shorter than the longest."""


class Room(NamedTuple):
    """What a budget has for the waiting pods of a node: a slot of its count, or a place beside it (unready pods)."""

    counted: bool = False
    beside: bool = False


NO_ROOM = Room()


class Told(NamedTuple):
    """One hint. `again` counts those before it that nobody has acted on."""

    budget: str
    node: str
    again: int


@dataclass
class Claim:
    """One node's claim on one budget.

    Attributes:
        told: when it was told last.
        tells: hints since a pod of the node last turned terminating.
        left: a pod of the node has gone since the last hint.
        quiet: not before this time; a pass was still at work.
        once: a hint is due however the budget stands.
    """

    room: Room = NO_ROOM
    told: float = -math.inf
    tells: int = 0
    left: bool = False
    quiet: float = -math.inf
    once: bool = False

    @property
    def is_open(self) -> bool:
        """There is room of either kind."""
        return any(self.room)

    def due(self) -> float:
        """When it may be told, whoever else may."""
        if self.once:
            return self.told + MIN_SECONDS
        if not self.is_open:
            return math.inf
        if self.tells:
            return self.told + min(math.ldexp(TURN_SECONDS, min(self.tells - 1, DOUBLINGS)), LONGEST_PAUSE)
        return max(self.told + MIN_SECONDS, self.quiet)

    def holds(self, now: float) -> bool:
        """It was told of a slot, and may still use it."""
        return self.room.counted and self.tells > 0 and now < self.told + TURN_SECONDS

    def show(self, room: Room) -> None:
        """Take in what the budget has for the node now. An opening after a pod left is a new one; a flap is none."""
        was_open, self.room = self.is_open, room
        if was_open and not self.is_open:
            self.quiet = -math.inf
        if self.is_open and not was_open and self.left:
            self.tells, self.left = 0, False

    def hear(self, now: float) -> None:
        """Take down that a pass is on its way."""
        self.told, self.tells, self.left, self.once = now, self.tells + 1, False, False


class Turns:
    """All claims. `show`, `acted` and so on take in what is seen; `take` gives the hints that are due."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, Claim]] = {}
        self._allowed: dict[str, int] = {}
        self._passes: dict[str, float] = {}
        self._when: dict[
            str, float
        ] = {}  # of budgets of which nothing was seen since: pods tell often, budgets are many

    def show(self, budget: str, node: str, room: Room | None, allowed: int) -> None:
        """The budget has this room for the waiting pods of the node, None when it covers none of them.

        In all it lets `allowed` pods go now.
        """
        if room is not None or node in self._claims.get(budget, {}):
            self._claim(budget, node).show(room or NO_ROOM)
            self._allowed[budget] = allowed

    def pass_begins(self, node: str, now: float) -> None:
        """A pass over the node is on its way for another reason: as good as told of all budgets."""
        self._passes[node] = now
        for budget in [budget for budget, claims in self._claims.items() if node in claims]:
            claim = self._claim(budget, node)
            claim.told, claim.tells, claim.left = now, max(claim.tells, 1), False

    def acted(self, budget: str, node: str, now: float) -> None:
        """A pod of the node that the budget covers turned terminating. More may follow: the pass is at work."""
        claim = self._claim(budget, node)
        claim.tells, claim.quiet = 0, now + MIN_SECONDS if claim.is_open else -math.inf

    def left(self, budget: str, node: str) -> None:
        """A pod of the node that the budget covers is gone."""
        self._claim(budget, node).left = True

    def relisted(self) -> None:
        """What happened in between was not seen: what is open counts as newly opened."""
        for claims in self._claims.values():
            for claim in claims.values():
                claim.tells = min(claim.tells, 1)
        self._when.clear()

    def once(self, budget: str, node: str) -> None:
        """Pods of the node may go since the budget covers them no more, or no longer is: tell it whatever the count."""
        self._claim(budget, node).once = True

    def forget(self, node: str) -> None:
        """The node is drained."""
        self._passes.pop(node, None)
        for budget in list(self._claims):
            if self._claims[budget].pop(node, None):
                self._when.pop(budget, None)
            if not self._claims[budget]:
                del self._claims[budget]
                self._allowed.pop(budget, None)

    def take(self, now: float) -> list[Told]:
        """The hints that are due; they count as told."""
        found: list[Told] = []
        for budget in self._claims:
            if self._when.get(budget, now) <= now:
                found += self._tell(budget, now)
                self._when[budget] = self._next(budget, now)
        return found

    def next(self, now: float) -> float:
        """When `take` will have something if nothing happens before; infinite when nothing is to be told."""
        found = (self._when[each] if each in self._when else self._next(each, now) for each in self._claims)
        return min(found, default=math.inf)

    def _tell(self, budget: str, now: float) -> Iterator[Told]:
        """Those not told for longest come first. A place beside the count is nobody's turn."""
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
        """What the budget allows less what those who were told may still use."""
        return self._allowed.get(budget, 0) - sum(claim.holds(now) for claim in self._claims[budget].values())

    def _next(self, budget: str, now: float) -> float:
        claims = self._claims[budget].values()
        later = [claim.due() for claim in claims if claim.due() > now]
        if any(claim.due() <= now for claim in claims):  # they wait for a turn to pass
            later += [claim.told + TURN_SECONDS for claim in claims if claim.holds(now)]
        return min(later, default=math.inf)

    def _claim(self, budget: str, node: str) -> Claim:
        """The claim, to be changed."""
        self._when.pop(budget, None)
        claims = self._claims.setdefault(budget, {})
        if node not in claims:
            told = self._passes.get(node)
            claims[node] = Claim() if told is None else Claim(told=told, tells=1)
        return claims[node]
