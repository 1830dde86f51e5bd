"""Takes turns: of many a few at a time, so that the cost of a tick does not grow with their number (design rule 10)."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from kube.paths import Object

T = TypeVar("T")


class Turns:
    """Goes round the items in the order of their uids, and keeps where it stopped.

    That is kept by the process alone. It starts anywhere: where each tick has a process of its own, that makes a random
    choice of it, in which nobody is left out for ever; the time of the tick in its place would leave some out when the
    schedule and their number have a common divisor. Several processes each go round for themselves.
    """

    def __init__(self, after: str = "") -> None:
        self._after = after or str(uuid.uuid4())

    def take(self, items: Iterable[Object], count: int) -> list[Object]:
        """Those whose turn it is, at most `count`."""
        chosen = self._around(items, _uid)[:count]
        if chosen:
            self._after = _uid(chosen[-1])
        return chosen

    def begin(self, items: Iterable[T], uid: Callable[[T], str]) -> list[T]:
        """All of them, first the one whose turn it is to be that: the next one, or what comes behind `stopped_at`."""
        found = self._around(items, uid)
        if found:
            self._after = uid(found[0])
        return found

    def stopped_at(self, uid: str) -> None:
        """The time was over behind this one: those that it left out come first, instead of those that it reached."""
        self._after = uid

    def _around(self, items: Iterable[T], uid: Callable[[T], str]) -> list[T]:
        ordered = sorted(items, key=uid)
        place = bisect_right(ordered, self._after, key=uid)
        return ordered[place:] + ordered[:place]


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])
