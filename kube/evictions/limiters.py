"""Limits when a process sends its next eviction; `EvictionLimiter` applies all limits, and serves nodes in rotation.

`RateLimiter` limits the evictions per second. If the API server responds with 429 because of its own rate limit, all
evictions pause for its `Retry-After`, because that limit applies to all of them.

`ConcurrencyLimiter` limits the evictions in flight of pods without a PodDisruptionBudget (PDB). An API server without
spare CPU responds more slowly to every client the more requests it gets. This would slow down the project's other steps
first.

`StartPacer` starts the evictions under one PDB one after another, for all nodes and passes. Concurrent evictions would
conflict: the API server reads the PDB, writes its count, and sleeps for half a second if another client wrote in
between. The next eviction may start while an earlier one sleeps. However, a sleeping eviction wakes up and also writes,
so the next one waits if many have no response (design rule 9). Without that wait, the evictions of two processes on a
busy server conflicted twenty times, after which the API server rejects an eviction.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

RATE_VARIABLE, DEFAULT_EVICTIONS_PER_SECOND = "EVICTIONS_PER_SECOND", 100.0
"""Environment variable that contains the maximum number of evictions per second, and its default.

An API server with a few cores grants fewer evictions per second than the default.
"""
START_INTERVAL_SECONDS = (0.1, 0.15)
"""Range, in seconds, of the minimum delay between an unanswered eviction and the next one under the same PDB.

The delay is random, so that two processes do not stay synchronized.
"""
MAX_UNANSWERED = 5
"""Maximum number of evictions under one PodDisruptionBudget that have no response yet.

In measurements with one and two processes on a busy machine, a maximum of two or three allowed too few concurrent
evictions. Without a maximum, too many evictions were sleeping in the API server.
"""
MAX_CONCURRENCY = 60
"""Maximum number of evictions in flight of pods without a PDB; this leaves connections for other requests."""


class FairLimiter:
    """Base class of limiters that grant permits to waiting tasks; the nodes of the tasks take turns in rotation.

    Subclasses define when a permit is available. Each event loop needs its own limiter.
    """

    def __init__(self) -> None:
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, node_name: str, deadline: float) -> bool:
        """Wait for a permit, and return whether it was granted before `deadline` (by `time.monotonic()`)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(node_name, deque()).append(future)
        self._grant_permits()
        # Since Python 3.12, `wait_for` drops a result that arrives at the timeout, which would lose a permit.
        await asyncio.wait({future}, timeout=max(0.0, deadline - time.monotonic()))
        if future.done():
            return True
        self._remove_waiter(node_name, future)
        return False

    def _remove_waiter(self, node_name: str, future: asyncio.Future[None]) -> None:
        """Remove a task that has timed out; otherwise it would get a permit in its node's place in the rotation."""
        futures = self._waiters[node_name]
        futures.remove(future)
        if not futures:
            del self._waiters[node_name]

    def _grant_permits(self) -> None:
        """Grant the available permits to the waiting tasks."""
        while self._waiters and self._has_permit():
            node = next(iter(self._waiters))
            futures = self._waiters.pop(node)
            future = futures.popleft()
            if futures:
                self._waiters[node] = futures  # moves the node to the end of the rotation
            self._take_permit()
            future.set_result(None)

    def _has_permit(self) -> bool:
        raise NotImplementedError

    def _take_permit(self) -> None:
        raise NotImplementedError


class RateLimiter(FairLimiter):
    """Rate limiter (token bucket) that grants at most `per_second` permits per second."""

    def __init__(self, per_second: float) -> None:
        super().__init__()
        self._per_second = self._tokens = per_second
        self._refilled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def back_off(self, seconds: float) -> None:
        """Pause for `seconds`, because the API server responded with 429."""
        self._refill()
        self._tokens = min(self._tokens, 1 - seconds * self._per_second)

    def _refill(self) -> None:
        """Add the tokens for the elapsed time, up to the number of tokens for one second."""
        now = time.monotonic()
        earned = (now - self._refilled_at) * self._per_second
        self._tokens, self._refilled_at = min(self._per_second, self._tokens + earned), now

    def _has_permit(self) -> bool:
        return self._tokens >= 1

    def _take_permit(self) -> None:
        self._tokens -= 1

    def _grant_permits(self) -> None:
        """Grant the available permits, and schedule the next call if tasks are still waiting."""
        self._refill()
        super()._grant_permits()
        if self._waiters and self._timer is None:
            seconds = (1 - self._tokens) / self._per_second
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._grant_permits()


def parse_evictions_per_second(environment: Mapping[str, str]) -> float:
    """Parse `$EVICTIONS_PER_SECOND`. Raises `ValueError` if it is not a number of at least 1."""
    text = environment.get(RATE_VARIABLE) or str(DEFAULT_EVICTIONS_PER_SECOND)
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 1 <= rate < float("inf"):
        raise ValueError(
            f"{RATE_VARIABLE}={text} is not a number of at least 1: correct it, "
            f"or unset it for the default {DEFAULT_EVICTIONS_PER_SECOND:g}"
        )
    return rate


class ConcurrencyLimiter(FairLimiter):
    """Limits the evictions in flight of pods without a PDB; after `acquire`, call `track` or `release`.

    A task acquires a permit of this limiter before one of `RateLimiter`. In the opposite order, a task could hold a
    rate permit without using it. The node whose pass started first would then block all other nodes until its pass
    ends.
    """

    def __init__(self, limit: int = MAX_CONCURRENCY) -> None:
        super().__init__()
        self._limit, self._in_flight = limit, 0

    def track(self, task: asyncio.Task[Any]) -> None:
        """Hold the permit for an eviction that has started, until `task` ends with the API server's response."""
        task.add_done_callback(lambda _: self.release())

    def release(self) -> None:
        """Return a permit, after a response or if no eviction was started."""
        self._in_flight -= 1
        self._grant_permits()

    def _has_permit(self) -> bool:
        return self._in_flight < self._limit

    def _take_permit(self) -> None:
        self._in_flight += 1


class StartPacer:
    """Spaces the starts of this process's evictions under one PDB. Each event loop needs its own pacer."""

    def __init__(self) -> None:
        self._unanswered: set[asyncio.Task[Any]] = set()
        self._last_task: asyncio.Task[Any] | None = None
        self._last_started = -math.inf
        self._min_interval = 0.0

    @property
    def has_evictions_in_flight(self) -> bool:
        """Return whether an eviction under this PodDisruptionBudget has no response yet."""
        return bool(self._unanswered)

    async def wait_until_start_allowed(self, deadline: float) -> bool:
        """Wait until the next eviction may start; return False if `deadline` (by `time.monotonic()`) passes first.

        If the result is True, the caller must start the eviction and call `track` immediately.
        """
        while (seconds_left := min(self._compute_next_start(), deadline) - time.monotonic()) > 0:
            await asyncio.wait(set(self._unanswered), timeout=seconds_left, return_when=asyncio.FIRST_COMPLETED)
        return self._compute_next_start() <= time.monotonic()

    def track(self, task: asyncio.Task[Any]) -> None:
        """Register an eviction that has started; `task` ends when the API server responds."""
        self._last_task, self._last_started = task, time.monotonic()
        self._min_interval = random.uniform(*START_INTERVAL_SECONDS)  # noqa: S311 - jitter needs no secure randomness
        self._unanswered.add(task)
        task.add_done_callback(self._on_response)

    def _on_response(self, task: asyncio.Task[Any]) -> None:
        """Forget an eviction that has a response; this bound method also keeps the pacer alive until then."""
        self._unanswered.discard(task)

    def _compute_next_start(self) -> float:
        if len(self._unanswered) >= MAX_UNANSWERED:
            return math.inf
        if self._last_task is None or self._last_task.done():
            return -math.inf
        return self._last_started + self._min_interval


class EvictionLimiter:
    """Applies all limits to the evictions that one API client sends.

    An eviction under a PodDisruptionBudget (PDB) waits for a rate permit and for the PDB's pacer. An eviction without a
    PDB waits for a concurrency permit and a rate permit. A dry run needs no rate permit. Each event loop needs its own
    limiter.
    """

    def __init__(self, *, is_dry_run: bool) -> None:
        self._is_dry_run = is_dry_run
        self._rate_limiter = RateLimiter(parse_evictions_per_second(os.environ))
        self._concurrency_limiter = ConcurrencyLimiter()
        self._pacers: WeakValueDictionary[str, StartPacer] = WeakValueDictionary()

    async def acquire(self, node_name: str, budget_key: str, deadline: float) -> ConcurrencyLimiter | StartPacer | None:
        """Wait until an eviction may start; return None if `deadline` (by `time.monotonic()`) passes first.

        `budget_key` is `namespace/name` of the pod's PodDisruptionBudget, "" if it has none. The caller must start the
        eviction immediately, and pass its task to `track` of the returned object.
        """
        if budget_key:
            pacer = self.get_pacer(budget_key)
            return (
                pacer
                if await self._acquire_rate_permit(node_name, deadline)
                and await pacer.wait_until_start_allowed(deadline)
                else None
            )
        if not await self._concurrency_limiter.acquire(node_name, deadline):
            return None
        may_start = False
        try:
            may_start = await self._acquire_rate_permit(node_name, deadline)
        finally:
            if not may_start:
                self._concurrency_limiter.release()
        return self._concurrency_limiter if may_start else None

    async def _acquire_rate_permit(self, node_name: str, deadline: float) -> bool:
        is_in_time = time.monotonic() <= deadline
        return is_in_time and (self._is_dry_run or await self._rate_limiter.acquire(node_name, deadline))

    def back_off(self, seconds: float) -> None:
        """Start no evictions for `seconds`, because the API server responded with 429."""
        self._rate_limiter.back_off(seconds)

    def has_evictions_in_flight(self, budget_key: str) -> bool:
        """Return whether an eviction under this PodDisruptionBudget has no response yet."""
        pacer = self._pacers.get(budget_key)
        return pacer is not None and pacer.has_evictions_in_flight

    def get_pacer(self, budget_key: str) -> StartPacer:
        """Return the pacer of evictions under this PDB; it is kept while one of them has no response."""
        pacer = self._pacers.get(budget_key)
        if pacer is None:
            pacer = self._pacers[budget_key] = StartPacer()
        return pacer
