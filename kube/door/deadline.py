"""Time limits for requests to the API server: of each one, and of all that one caller makes together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from kube.door.api_errors import Unavailable

REQUEST_SECONDS = 10.0
"""No single request may take longer: functions answer in about a second, and a hung server is an error to retry."""
_deadline: ContextVar[float] = ContextVar("deadline", default=inf)
"""When, by `time.monotonic()`, the caller has to have its answers."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Give the requests of this block, also those of threads and tasks it hands them to, so much time altogether.

    What has no answer by then is `Unavailable`, as if the server were away; a write may have been done.
    """
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float:
    """How long the next request may take. Raises `Unavailable` when there is no time for one."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise Unavailable(0, "no answer from the API server in time")
    return min(left, REQUEST_SECONDS)


def has_time(seconds: float) -> bool:
    """Whether so much of it is left."""
    return _deadline.get() - time.monotonic() >= seconds
