"""Exponential backoff: computes the delays between the retries of a failed request."""

from __future__ import annotations

from collections.abc import Iterator


class ExponentialBackoff:
    """Computes the delays before retries: `first_seconds` first, then each time twice the previous delay.

    A delay that `get_next_delay` caps at `max_seconds` counts as the previous delay with its capped value.
    """

    def __init__(self, first_seconds: float) -> None:
        self._next_seconds = first_seconds

    def get_next_delay(self, max_seconds: float) -> float:
        """Return the seconds to wait before the next retry, at most `max_seconds`."""
        delay = min(self._next_seconds, max_seconds)
        self._next_seconds = 2 * delay
        return delay


def generate_delays(first_seconds: float, max_seconds: float) -> Iterator[float]:
    """Yield an endless series of delays before retries, each at most `max_seconds` seconds."""
    backoff = ExponentialBackoff(first_seconds)
    while True:
        yield backoff.get_next_delay(max_seconds)
