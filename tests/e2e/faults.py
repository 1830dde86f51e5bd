"""A fault in the middle of a drain of the whole fleet, and what must be true after it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.e2e.fleet import NODES, PODS, Fleet

REPAIRED = 45.0
"""Seconds from the repair within which every maintenance has Succeeded."""
PATIENCE = 90.0
"""Seconds after which nobody waits any longer, so that the time it took is known."""


def survives(what: str, fleet: Fleet, kill: Callable[[], None], repair: Callable[[], None]) -> None:
    """Kill while half of the pods are going, repair at once: all Succeeded, every pod evicted exactly once by uid."""
    fleet.fill()
    fleet.drain()
    fleet.await_terminating(NODES * PODS // 2)
    kill()
    killed = time.monotonic()
    repair()
    repaired = time.monotonic()
    ended = fleet.await_succeeded(PATIENCE)

    print(f"{what}: down for {repaired - killed:.1f} s, all Succeeded {ended - repaired:.1f} s after the repair")
    assert fleet.evicted() == {pod["metadata"]["uid"]: 1 for pod in fleet.pods}
    fleet.restore()
    assert ended - repaired < REPAIRED
