"""Exponential back-off: the pauses between attempts of one request that is retried for as long as it takes."""

from __future__ import annotations

from collections.abc import Iterator


class GrowingPauses:
    """Pauses before retries: `first` seconds, then each twice the last, each at most what is its own bound.

    They grow on, whatever the bound of the last one was.
    """

    def __init__(self, first: float) -> None:
        self._next = first

    def take(self, longest: float) -> float:
        """Seconds to wait before the next retry, `longest` at most."""
        pause = min(self._next, longest)
        self._next = 2 * pause
        return pause


def pauses(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait before each retry, without end, where all have one bound: `longest`."""
    growing = GrowingPauses(first)
    while True:
        yield growing.take(longest)
