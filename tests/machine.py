"""How slow this machine is now, against the one on which limits in seconds were set: two cores with quiet neighbours.

Where cores are shared, the same drains take twice as long an hour later, and that says nothing of the product. A limit
grows with what a fixed piece of work on every core takes beside the figure that is judged; on a machine as fast as
that one, or faster, it stays as it is.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

WORK = """
import time
started, total = time.perf_counter(), 0
for step in range(3_000_000):
    total += step
print(time.perf_counter() - started)
"""
NOMINAL = 0.18
"""Seconds that this took there."""
ROUNDS = 3


def slowness() -> float:
    """1.0 on a machine as fast as that one or faster, 2.0 on one half as fast; takes about a second."""
    return max(1.0, statistics.median(_round() for _ in range(ROUNDS)) / NOMINAL)


def is_below(figure: float, limit: float) -> bool:
    """Whether a figure is below its limit on a machine as fast as that one, or else below what this one is given."""
    return figure < limit or figure < limit * slowness()


def _round() -> float:
    """Seconds that the work takes when every core does it at once, on average."""
    words = [sys.executable, "-I", "-S", "-c", WORK]
    working = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    return statistics.mean(float(each.communicate()[0]) for each in working)
