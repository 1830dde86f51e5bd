"""Round-robin selection of a few items per tick, which bounds the work of each tick (design rule 10)."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from kube.paths import Object

T = TypeVar("T")


class RoundRobin:
    """Round-robin selection in the order of the items' uids, which remembers its position.

    The position is kept in this process's memory, and its initial value is random. If each tick runs in a new process,
    the selection is thus random, and no item is skipped forever. A position derived from the tick's time would skip
    some items if the schedule and the number of items had a common divisor. Several processes rotate independently.
    """

    def __init__(self, last_uid: str = "") -> None:
        self._last_uid = last_uid or str(uuid.uuid4())

    def take(self, items: Iterable[Object], count: int) -> list[Object]:
        """Return at most `count` items, beginning with the first item after the position, and advance the position."""
        chosen = self._rotate_after_last(items, _get_uid)[:count]
        if chosen:
            self._last_uid = _get_uid(chosen[-1])
        return chosen

    def rotate(self, items: Iterable[T], get_uid: Callable[[T], str]) -> list[T]:
        """Return all items in rotated order.

        The order starts after the first item of the previous call, or after the uid passed to `resume_after`.
        """
        rotated = self._rotate_after_last(items, get_uid)
        if rotated:
            self._last_uid = get_uid(rotated[0])
        return rotated

    def resume_after(self, uid: str) -> None:
        """Set the position to the last item that was handled before the time ran out.

        The next call to `rotate` then starts with the items that were not reached.
        """
        self._last_uid = uid

    def _rotate_after_last(self, items: Iterable[T], get_uid: Callable[[T], str]) -> list[T]:
        ordered = sorted(items, key=get_uid)
        start = bisect_right(ordered, self._last_uid, key=get_uid)
        return ordered[start:] + ordered[:start]


def _get_uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])
