"""Exponential backoff: the delays between attempts of a request that is retried until it succeeds."""

from __future__ import annotations

from collections.abc import Iterator


class GrowingPauses:
    """Delays before retries: `first` seconds, then twice the previous delay, each capped by its own bound.

    A capped delay is doubled too, so the delays keep growing even if the bounds alternate.
    """

    def __init__(self, first: float) -> None:
        self._next = first

    def take(self, longest: float) -> float:
        """Return the seconds to wait before the next retry, at most `longest`."""
        pause = min(self._next, longest)
        self._next = 2 * pause
        return pause


def pauses(first: float, longest: float) -> Iterator[float]:
    """Yield the seconds to wait before each retry, without end, at most `longest` each."""
    growing = GrowingPauses(first)
    while True:
        yield growing.take(longest)
