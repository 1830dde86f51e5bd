"""Time limits for requests to the API server: per request, and for all requests in a block."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from kube.client.api_errors import Unavailable

REQUEST_TIMEOUT_SECONDS = 10.0
"""Timeout of a single request; after it, a request to a hung server fails with a retryable error."""
_deadline: ContextVar[float] = ContextVar("deadline", default=inf)
"""The `time.monotonic()` value at which all requests in the enclosing `set_deadline` block must have completed."""


@contextmanager
def set_deadline(seconds: float) -> Iterator[None]:
    """Limit the total time of the requests in this block, including requests in its threads and tasks.

    A request without a response by the deadline raises `Unavailable`, even if the API server executed its write.
    """
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def get_seconds_left() -> float:
    """Return the timeout of the next request in seconds. Raises `Unavailable` if the deadline has passed."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise Unavailable(0, "no response from the API server in time")
    return min(left, REQUEST_TIMEOUT_SECONDS)


def has_seconds_left(seconds: float) -> bool:
    """Return whether at least `seconds` seconds are left until the deadline of the enclosing `set_deadline` block."""
    return _deadline.get() - time.monotonic() >= seconds
