"""Round-robin selection of a few items per call, which bounds the work of each pass (design rule 10)."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from kube.paths import Object

T = TypeVar("T")


class RoundRobin:
    """Round-robin selection in the order of the items' uids, which remembers its position.

    Each process keeps its own position in memory, with a random initial value. Even if each call is made in a new
    process, no item is therefore skipped forever. A position derived from the current time would skip some items if the
    interval of the calls and the number of items had a common divisor.
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
        """Return all items in uid order, starting after the first item of the previous call, and wrapping around.

        After a call of `resume_after`, the order starts after the uid that was passed to it.
        """
        rotated = self._rotate_after_last(items, get_uid)
        if rotated:
            self._last_uid = get_uid(rotated[0])
        return rotated

    def resume_after(self, uid: str) -> None:
        """Set the position to the last item that was handled before the deadline.

        The next call of `rotate` then starts with the items that were not reached.
        """
        self._last_uid = uid

    def _rotate_after_last(self, items: Iterable[T], get_uid: Callable[[T], str]) -> list[T]:
        ordered = sorted(items, key=get_uid)
        start = bisect_right(ordered, self._last_uid, key=get_uid)
        return ordered[start:] + ordered[:start]


def _get_uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])
