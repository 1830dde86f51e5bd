"""Exponential back-off: the pauses between attempts of one request that is retried for as long as it takes."""

from __future__ import annotations

from collections.abc import Iterator


def pauses(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait before each retry, without end: `first`, then each twice the last, `longest` at most."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)


class GrowingPauses:
    """The same where each pause has a bound of its own: they grow on, whatever the bound of the last one was."""

    def __init__(self, first: float) -> None:
        self._next = first

    def take(self, longest: float) -> float:
        """Seconds to wait before the next retry, `longest` at most."""
        pause = min(self._next, longest)
        self._next = 2 * pause
        return pause
