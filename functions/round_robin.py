"""Round-robin selection of a few items per tick, so that the cost of a tick stays constant (design rule 10)."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from kube.paths import Object

T = TypeVar("T")


class Turns:
    """Round-robin selection in the order of the items' uids, which remembers its position.

    Only this process knows the position, and it starts at random. If each tick runs in a new process, the selection is
    thus random, and no item is skipped forever. A position derived from the tick's time would skip some items if the
    schedule and the number of items had a common divisor. Several processes rotate independently.
    """

    def __init__(self, after: str = "") -> None:
        self._after = after or str(uuid.uuid4())

    def take(self, items: Iterable[Object], count: int) -> list[Object]:
        """Return the next items, at most `count`."""
        chosen = self._around(items, _uid)[:count]
        if chosen:
            self._after = _uid(chosen[-1])
        return chosen

    def begin(self, items: Iterable[T], uid: Callable[[T], str]) -> list[T]:
        """Return all items in rotated order.

        The first one is the item after the first one of the previous call, or after the uid passed to `stopped_at`.
        """
        found = self._around(items, uid)
        if found:
            self._after = uid(found[0])
        return found

    def stopped_at(self, uid: str) -> None:
        """Record the last item that was handled before the time ran out.

        The next call to `begin` then starts with the items that were not reached.
        """
        self._after = uid

    def _around(self, items: Iterable[T], uid: Callable[[T], str]) -> list[T]:
        ordered = sorted(items, key=uid)
        place = bisect_right(ordered, self._after, key=uid)
        return ordered[place:] + ordered[:place]


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])
