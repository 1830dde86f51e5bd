"""Limits when one process sends its next eviction; `EvictionLimiter` applies all limits, and serves nodes fairly.

`RateLimiter` limits the evictions per second. The API server may have its own rate limit (429 with `Retry-After`). All
evictions then pause, because that limit applies to all of them.

`ConcurrencyLimiter` limits the evictions in flight of pods without a budget. The more requests an API server without
spare CPU gets, the more slowly it responds to every client, first of all to the other steps of this project.

Under one budget, evictions start one after another, whichever node or pass they are for (`StartPacer`). Concurrent
evictions would conflict: the API server reads the budget, writes its count, and sleeps half a second if another
eviction or the disruption controller wrote in between. The next eviction may start while an earlier one sleeps.
However, a sleeping eviction wakes up and also writes, so the next one waits if many have no response (design rule 9).
Without that wait, the evictions of two processes on a busy server conflicted twenty times, after which the API server
gives up.
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
"""Environment variable with the maximum evictions per second, and its default.

The default exceeds what an API server with a few cores can do.
"""
START_INTERVAL_SECONDS = (0.1, 0.15)
"""Range in seconds of the minimum delay between an unanswered eviction and the next eviction under its budget.

The delay is random, so that two processes do not stay synchronized.
"""
MAX_UNANSWERED = 5
"""Maximum number of evictions under one budget that have no response.

In measurements with one and two processes on a busy machine, a maximum of two or three allowed too few concurrent
evictions. Without a maximum, too many evictions slept in the API server.
"""
MAX_CONCURRENCY = 60
"""Maximum number of evictions in flight of pods without a budget; the other requests need connections, too."""


class FairLimiter:
    """Base class of limiters that grant turns to waiting tasks, one node after another in rotation.

    Subclasses define when a turn is available. Each event loop needs its own limiter.
    """

    def __init__(self) -> None:
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, node_name: str, deadline: float) -> bool:
        """Wait for a turn, and return whether it was granted before `deadline` (monotonic)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(node_name, deque()).append(future)
        self._grant_turns()
        # Since Python 3.12, `wait_for` drops a result that arrives at the timeout, which would lose a turn.
        await asyncio.wait({future}, timeout=max(0.0, deadline - time.monotonic()))
        if future.done():
            return True
        self._remove(node_name, future)
        return False

    def _remove(self, node_name: str, future: asyncio.Future[None]) -> None:
        """Remove a task that has timed out: it would cost its node a turn."""
        futures = self._waiters[node_name]
        futures.remove(future)
        if not futures:
            del self._waiters[node_name]

    def _grant_turns(self) -> None:
        """Grant the available turns."""
        while self._waiters and self._has_turn():
            node = next(iter(self._waiters))
            futures = self._waiters.pop(node)
            future = futures.popleft()
            if futures:
                self._waiters[node] = futures  # moves the node to the end of the rotation
            self._take_turn()
            future.set_result(None)

    def _has_turn(self) -> bool:
        raise NotImplementedError

    def _take_turn(self) -> None:
        raise NotImplementedError


class RateLimiter(FairLimiter):
    """Rate limiter (token bucket) that grants `per_second` turns per second."""

    def __init__(self, per_second: float) -> None:
        super().__init__()
        self._per_second = self._tokens = per_second
        self._refilled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def back_off(self, seconds: float) -> None:
        """Grant no turns for `seconds`, because the API server reported that it is busy."""
        self._refill()
        self._tokens = min(self._tokens, 1 - seconds * self._per_second)

    def _refill(self) -> None:
        """Add the tokens for the elapsed time, up to the tokens of one second."""
        now = time.monotonic()
        earned = (now - self._refilled_at) * self._per_second
        self._tokens, self._refilled_at = min(self._per_second, self._tokens + earned), now

    def _has_turn(self) -> bool:
        return self._tokens >= 1

    def _take_turn(self) -> None:
        self._tokens -= 1

    def _grant_turns(self) -> None:
        """Grant the available turns, and schedule the next call if tasks still wait."""
        self._refill()
        super()._grant_turns()
        if self._waiters and self._timer is None:
            seconds = (1 - self._tokens) / self._per_second
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._grant_turns()


def parse_evictions_per_second(environment: Mapping[str, str]) -> float:
    """Return `$EVICTIONS_PER_SECOND`. Raises `ValueError` if it is not a number of at least 1."""
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
    """Limits the evictions in flight of pods without a budget; after a grant, call `track` or `release`.

    A task gets a slot of this limiter before its turn from `RateLimiter`. In the opposite order, a task with a turn but
    no slot would waste the turn. The node whose pass started first would then block all other nodes until its pass
    ends.
    """

    def __init__(self, limit: int = MAX_CONCURRENCY) -> None:
        super().__init__()
        self._limit, self._in_flight = limit, 0

    def track(self, task: asyncio.Task[Any]) -> None:
        """Use the slot for an eviction that has started; `task` ends when the API server responds."""
        task.add_done_callback(lambda _: self.release())

    def release(self) -> None:
        """Free a slot, after a response or without having started an eviction."""
        self._in_flight -= 1
        self._grant_turns()

    def _has_turn(self) -> bool:
        return self._in_flight < self._limit

    def _take_turn(self) -> None:
        self._in_flight += 1


class StartPacer:
    """Spaces the starts of this process's evictions under one budget. Each event loop needs its own pacer."""

    def __init__(self) -> None:
        self._unanswered: set[asyncio.Task[Any]] = set()
        self._last_task: asyncio.Task[Any] | None = None
        self._last_started = -math.inf
        self._min_interval = 0.0

    @property
    def has_unanswered(self) -> bool:
        """Return whether any eviction has no response yet."""
        return bool(self._unanswered)

    async def wait_turn(self, deadline: float) -> bool:
        """Wait until the next eviction may start; return False if that is after `deadline` (monotonic).

        If the function returns True, the caller must start the eviction and call `track` immediately.
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
        """Forget an answered eviction; as a method, this callback also keeps the pacer while it is needed."""
        self._unanswered.discard(task)

    def _compute_next_start(self) -> float:
        if len(self._unanswered) >= MAX_UNANSWERED:
            return math.inf
        if self._last_task is None or self._last_task.done():
            return -math.inf
        return self._last_started + self._min_interval


class EvictionLimiter:
    """All limits on the evictions that one API client sends.

    An eviction under a budget waits for a token and its turn under the budget. An eviction without a budget waits for a
    slot and a token. A dry run needs no token. Each event loop needs its own limiter.
    """

    def __init__(self, *, is_dry_run: bool) -> None:
        self._is_dry_run = is_dry_run
        self._rate_limiter = RateLimiter(parse_evictions_per_second(os.environ))
        self._concurrency_limiter = ConcurrencyLimiter()
        self._pacers: WeakValueDictionary[str, StartPacer] = WeakValueDictionary()

    async def acquire(self, node_name: str, budget_key: str, deadline: float) -> ConcurrencyLimiter | StartPacer | None:
        """Wait until an eviction may start, or return None if `deadline` (monotonic) passes first.

        `budget_key` is `namespace/name` of the pod's budget, "" if it has none. The caller must start the eviction
        immediately, and pass its task to `track` of the returned object.
        """
        if budget_key:
            pacer = self.get_pacer(budget_key)
            return pacer if await self._acquire_token(node_name, deadline) and await pacer.wait_turn(deadline) else None
        if not await self._concurrency_limiter.acquire(node_name, deadline):
            return None
        may_start = False
        try:
            may_start = await self._acquire_token(node_name, deadline)
        finally:
            if not may_start:
                self._concurrency_limiter.release()
        return self._concurrency_limiter if may_start else None

    async def _acquire_token(self, node_name: str, deadline: float) -> bool:
        is_in_time = time.monotonic() <= deadline
        return is_in_time and (self._is_dry_run or await self._rate_limiter.acquire(node_name, deadline))

    def back_off(self, seconds: float) -> None:
        """Start no eviction for `seconds`, because the API server reported that it is busy."""
        self._rate_limiter.back_off(seconds)

    def has_unanswered(self, budget_key: str) -> bool:
        """Return whether evictions under this budget have no response yet."""
        pacer = self._pacers.get(budget_key)
        return pacer is not None and pacer.has_unanswered

    def get_pacer(self, budget_key: str) -> StartPacer:
        """Return the pacer of the budget's evictions; it exists while an eviction without a response refers to it."""
        pacer = self._pacers.get(budget_key)
        if pacer is None:
            pacer = self._pacers[budget_key] = StartPacer()
        return pacer
