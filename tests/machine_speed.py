"""Measures this machine's speed relative to the reference machine, by which limits in seconds are scaled.

The reference machine has two cores without competing load. On shared cores the same drain can take twice as long an
hour later, independently of the product. A limit is multiplied by the time that a fixed piece of work on every core
takes, relative to the reference. On a machine that is at least as fast, the limit is unchanged.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

WORK_SCRIPT = """
import time
started, total = time.perf_counter(), 0
for step in range(3_000_000):
    total += step
print(time.perf_counter() - started)
"""
REFERENCE_SECONDS = 0.18
"""Seconds that the work takes on the reference machine."""
ROUND_COUNT = 3


def measure_slowdown() -> float:
    """Return by which factor this machine is slower than the reference machine, at least 1.0; takes about a second."""
    return max(1.0, statistics.median(_time_round() for _ in range(ROUND_COUNT)) / REFERENCE_SECONDS)


def is_below_scaled_limit(figure: float, limit: float) -> bool:
    """Return whether a figure is below the reference machine's limit, or below the limit scaled for this machine."""
    return figure < limit or figure < limit * measure_slowdown()


def _time_round() -> float:
    """Return the mean duration of the work in seconds if all cores run it concurrently."""
    command = [sys.executable, "-I", "-S", "-c", WORK_SCRIPT]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    return statistics.mean(float(process.communicate()[0]) for process in processes)
