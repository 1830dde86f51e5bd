"""Measures this machine's speed relative to the reference machine, in order to scale limits in seconds.

The reference machine has two cores without other load. On shared cores, the same drain can take twice as long an hour
later, independently of the product. A fixed loop on every core measures the speed. A limit is multiplied by the
duration of this loop relative to the reference machine. On a faster machine, the limit is unchanged.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

LOOP_SCRIPT = """
import time
started, total = time.perf_counter(), 0
for step in range(3_000_000):
    total += step
print(time.perf_counter() - started)
"""
REFERENCE_SECONDS = 0.18
"""Seconds that `LOOP_SCRIPT` takes on the reference machine."""
ROUND_COUNT = 3


def measure_slowdown() -> float:
    """Return how many times slower this machine is than the reference machine, and at least 1.0."""
    return max(1.0, statistics.median(_measure_loop_seconds() for _ in range(ROUND_COUNT)) / REFERENCE_SECONDS)


def is_below_scaled_limit(value: float, limit: float) -> bool:
    """Return whether a measured value is below the limit, either unchanged or scaled for this machine."""
    return value < limit or value < limit * measure_slowdown()


def _measure_loop_seconds() -> float:
    """Run the loop on all cores concurrently, and return its mean duration in seconds."""
    command = [sys.executable, "-I", "-S", "-c", LOOP_SCRIPT]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    return statistics.mean(float(process.communicate()[0]) for process in processes)
