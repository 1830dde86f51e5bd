"""Exponential back-off: the pauses between attempts of one request that is retried for as long as it takes."""

from __future__ import annotations

from collections.abc import Iterator


def pauses(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait before each retry, without end: `first`, then each twice the last, `longest` at most."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)
