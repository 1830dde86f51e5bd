"""Limits how fast one process sends evictions: a maximum number per second, shared fairly between nodes.

The API server may have its own rate limit (429 with `Retry-After`). All evictions then pause, because that limit
applies to all of them.

`ConcurrencyLimiter` limits the evictions in flight of pods without a budget, and adapts to the response times. An API
server without spare CPU responds more slowly the more requests it gets. That delays every client, first of all the
other steps of this project.

Under one budget, evictions start one after another, whichever node or pass they are for (`SerialQueue`). Concurrent
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
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

RATE_VARIABLE, DEFAULT_EVICTIONS_PER_SECOND = "EVICTIONS_PER_SECOND", 100.0
"""Environment variable with the maximum evictions per second, and its default.

The default exceeds what an API server with a few cores can do.
"""
START_INTERVAL_SECONDS = (0.1, 0.15)
"""Range in seconds of the minimum delay between an unanswered eviction and the next eviction under its budget.

The delay is random, so that two processes do not stay synchronized.
"""
LATENCY_FACTOR = 1.5
"""An unanswered eviction delays the next eviction by this multiple of the usual response time.

If all responses are slow, a missing response is probably not due to the API server's sleep after a conflict.
"""
CONGESTION_THRESHOLD, CONGESTION_DELAY_SECONDS = 5, 1.0
"""Number of unanswered evictions that delay the next eviction by `CONGESTION_DELAY_SECONDS`.

Each further unanswered eviction doubles the delay. During the delay, the API server answers the evictions that sleep
after a conflict. An eviction that takes longer waits for an admission webhook, and should not delay all other evictions
indefinitely.

In measurements with one and two processes on a busy machine, a threshold of two or three allowed too few concurrent
evictions. Without a threshold, too many evictions slept in the API server.
"""
COLLISION_SECONDS = 0.45
"""Response time from which a response includes the API server's sleep of 0.45 to 0.5 s after a conflict."""
MAX_SAMPLES = 16
"""Number of recent responses from which the usual response time is computed."""
MAX_CONCURRENCY, MIN_CONCURRENCY = 60, 8
"""Upper and lower bound of the limit on evictions in flight.

The upper bound leaves connections for all other requests, and the lower bound keeps a small API server busy.
"""
SLOW_RANGE_SECONDS = (0.4, 2.0)
"""Bounds in seconds of a slow response; an idle API server takes a tenth of a second.

A response above the upper bound waited for an admission webhook and is ignored.
"""
DECREASE_FACTOR, INCREASE_STEP = 0.95, 0.25
"""Factor on the limit of `ConcurrencyLimiter` after a slow response, and increment after a fast response.

If a fifth of the responses are slow, a limit of about 20 stays constant.
"""


class FairQueue:
    """Queue of tasks that wait for a turn; the nodes get turns in rotation. Each event loop needs its own queue."""

    def __init__(self) -> None:
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        """Return whether any task waits for a turn."""
        return bool(self._waiters)

    async def wait_turn(self, node_name: str, timeout_seconds: float, grant_available: Callable[[], None]) -> bool:
        """Wait for a turn, and return whether it was granted within `timeout_seconds`.

        `grant_available` may grant the turn immediately.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(node_name, deque()).append(future)
        grant_available()
        # Since Python 3.12, `wait_for` drops a result that arrives at the timeout, which would lose a slot.
        await asyncio.wait({future}, timeout=max(0.0, timeout_seconds))
        if future.done():
            return True
        future.cancel()
        self._remove(node_name, future)
        return False

    def grant_next(self) -> bool:
        """Grant a turn to the node at the head of the rotation; return whether its task was still waiting."""
        node = next(iter(self._waiters))
        queue = self._waiters.pop(node)
        future = queue.popleft()
        if queue:
            self._waiters[node] = queue  # moves the node to the end of the rotation
        if future.done():
            return False
        future.set_result(None)
        return True

    def _remove(self, node_name: str, future: asyncio.Future[None]) -> None:
        queue = self._waiters.get(node_name)
        if queue is not None and future in queue:
            queue.remove(future)
            if not queue:
                del self._waiters[node_name]


class RateLimiter:
    """Rate limiter (token bucket) that grants `per_second` turns per second. Each event loop needs its own limiter."""

    def __init__(self, per_second: float) -> None:
        self._per_second = self._tokens = per_second
        self._refilled_at = 0.0
        self._queue = FairQueue()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, node_name: str, timeout_seconds: float) -> bool:
        """Wait for a turn, and return whether it was granted within `timeout_seconds`; nodes get turns in rotation."""
        return await self._queue.wait_turn(node_name, timeout_seconds, self._grant_available)

    def back_off(self, seconds: float) -> None:
        """Grant no turns for `seconds`, because the API server reported that it is busy."""
        self._refill()
        self._tokens = min(self._tokens, 1 - seconds * self._per_second)

    def _refill(self) -> None:
        """Add the tokens for the elapsed time, up to the tokens of one second."""
        now = asyncio.get_running_loop().time()
        earned = (now - self._refilled_at) * self._per_second
        self._tokens, self._refilled_at = min(self._per_second, self._tokens + earned), now

    def _grant_available(self) -> None:
        """Grant the available turns, and schedule the next call if tasks still wait."""
        self._refill()
        while self._queue and self._tokens >= 1:
            if self._queue.grant_next():
                self._tokens -= 1
        if self._queue and self._timer is None:
            seconds = (1 - self._tokens) / self._per_second
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._grant_available()


_rate_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, RateLimiter] = WeakKeyDictionary()


def get_rate_limiter() -> RateLimiter:
    """Return the rate limiter of the running loop; a process that serves functions has one loop."""
    loop = asyncio.get_running_loop()
    if loop not in _rate_limiters:
        _rate_limiters[loop] = RateLimiter(parse_evictions_per_second(os.environ))
    return _rate_limiters[loop]


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


def compute_delay(min_seconds: float, median_seconds: float, unanswered_count: int) -> float:
    """Return the seconds between the start of the last eviction and the start of the next eviction.

    `min_seconds` is the minimum, `median_seconds` the usual response time, and `unanswered_count` the number of
    evictions without a response.
    """
    if unanswered_count >= CONGESTION_THRESHOLD:
        return math.ldexp(CONGESTION_DELAY_SECONDS, unanswered_count - CONGESTION_THRESHOLD)
    return max(min_seconds, LATENCY_FACTOR * median_seconds)


class ConcurrencyLimiter:
    """Limits the evictions in flight of pods without a budget; the nodes get slots in rotation.

    A task gets a slot of this limiter before its turn from `RateLimiter`. In the opposite order, a task with a turn but
    no slot would waste the turn. The node whose pass started first would then block all other nodes until its pass
    ends. Each event loop needs its own limiter.
    """

    def __init__(self) -> None:
        self.limit = float(MAX_CONCURRENCY)
        self._in_flight = 0
        self._queue = FairQueue()

    async def acquire(self, node_name: str, deadline: float) -> bool:
        """Wait for a slot, and return whether it was granted before `deadline` (monotonic).

        After a grant, the caller must call `track` or `release`.
        """
        return await self._queue.wait_turn(node_name, deadline - time.monotonic(), self._grant_available)

    def track(self, task: asyncio.Task[Any]) -> None:
        """Use the slot for an eviction that has started; `task` ends when the API server responds."""
        task.add_done_callback(partial(self._on_response, time.monotonic()))

    def release(self) -> None:
        """Free a slot, after a response or without having started an eviction."""
        self._in_flight -= 1
        self._grant_available()

    def record_latency(self, seconds: float) -> None:
        """Adapt the limit to the duration of a response."""
        if seconds < SLOW_RANGE_SECONDS[0]:
            self.limit = min(MAX_CONCURRENCY, self.limit + INCREASE_STEP)
        elif seconds < SLOW_RANGE_SECONDS[1]:
            self.limit = max(MIN_CONCURRENCY, self.limit * DECREASE_FACTOR)

    def _on_response(self, started: float, _task: asyncio.Task[Any]) -> None:
        self.record_latency(time.monotonic() - started)
        self.release()

    def _grant_available(self) -> None:
        while self._queue and self._in_flight < int(self.limit):
            if self._queue.grant_next():
                self._in_flight += 1


class MedianLatency:
    """The usual response time without the API server's sleep: the median of recent responses."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=MAX_SAMPLES)

    def record(self, seconds: float) -> None:
        """Record the duration of a response."""
        if seconds < COLLISION_SECONDS:
            self._samples.append(seconds)

    def compute_median(self) -> float:
        """Return the usual response time, or 0 if none is known yet."""
        return sorted(self._samples)[len(self._samples) // 2] if self._samples else 0.0


class SerialQueue:
    """This process's evictions under one budget, which start one after another. Each event loop needs its own queue."""

    def __init__(self, latency: MedianLatency) -> None:
        self._latency = latency
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
        task.add_done_callback(partial(self._on_response, self._last_started))

    def _on_response(self, started: float, task: asyncio.Task[Any]) -> None:
        self._unanswered.discard(task)
        self._latency.record(time.monotonic() - started)

    def _compute_next_start(self) -> float:
        if self._last_task is None or self._last_task.done():
            return -math.inf
        return self._last_started + compute_delay(
            self._min_interval, self._latency.compute_median(), len(self._unanswered)
        )
