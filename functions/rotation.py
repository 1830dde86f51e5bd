"""Takes turns: of many a few at a time, so that the cost of a tick does not grow with their number (design rule 10)."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable

from kube.paths import Object


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
        ordered = sorted(items, key=_uid)
        place = bisect_right(ordered, self._after, key=_uid)
        chosen = (ordered[place:] + ordered[:place])[:count]
        if chosen:
            self._after = _uid(chosen[-1])
        return chosen


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])
