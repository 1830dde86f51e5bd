"""How slow this machine is, against the one on which limits in seconds were set: two cores whose neighbours were quiet.

Where cores are shared, the same drain takes twice as long an hour later, and says nothing of the product. A limit
grows with what a fixed piece of work takes before anything else is started; on a machine as fast as that one, or
faster, it stays as it is.
"""

from __future__ import annotations

import statistics
import time
from functools import cache

STEPS = 1_000_000
NOMINAL = 0.06
"""Seconds that so many steps took there."""


@cache
def slowness() -> float:
    """1.0 on a machine as fast as that one or faster, 2.0 on one half as fast; measured once, at the first call."""
    return max(1.0, statistics.median(_work() for _ in range(9)) / NOMINAL)


def _work() -> float:
    started, total = time.perf_counter(), 0
    for step in range(STEPS):
        total += step
    return time.perf_counter() - started
