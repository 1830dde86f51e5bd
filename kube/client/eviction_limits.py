"""Limits how fast one process sends evictions: a total per second, shared fairly between nodes.

The API server may have its own rate limit (429 with `Retry-After`). All evictions then pause, because that limit
applies to all of them.

`Window` limits the evictions in flight outside of budgets, and adapts to the response times. An API server without
spare CPU responds more slowly the more requests it gets. That delays every client, first of all the other steps of this
project.

Under one budget, evictions start one after another, whichever node or pass they are for (`Lane`). Concurrent ones would
conflict: the API server reads the budget, writes its count, and sleeps half a second if another eviction or the
disruption controller wrote in between. The next eviction may start while an earlier one sleeps. However, a sleeping
eviction wakes up and writes too, so the next one waits if many have no response (design rule 9). Without that wait, the
evictions of two processes on a busy server conflicted twenty times, after which the API server gives up.
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

VARIABLE, PER_SECOND = "EVICTIONS_PER_SECOND", 100.0
"""Environment variable with the maximum evictions per second, and its default.

The default exceeds what an API server with a few cores can do.
"""
OVERTAKEN = (0.1, 0.15)
"""Bounds in seconds of the minimum delay that an unanswered eviction imposes on the next one.

The delay is random, so that two processes do not stay synchronized.
"""
USUAL_TIMES = 1.5
"""Multiple of the usual response time for which an unanswered eviction delays the next one.

If all responses are slow, an eviction without a response is probably not sleeping.
"""
CROWD, CROWD_SECONDS = 5, 1.0
"""Number of unanswered evictions that delay the next one by `CROWD_SECONDS`; each further one doubles the delay.

After that time, conflicting evictions have finished their sleep. An eviction that takes longer waits for an admission
webhook, and should not delay the others indefinitely. Measured with one and two processes on a busy machine: two or
three allow too few evictions at a time; without a limit, too many sleep.
"""
SLEPT_SECONDS = 0.45
"""A response that took longer includes the API server's sleep of half a second, minus up to a tenth."""
REMEMBERED = 16
"""Number of recent responses from which the usual response time is computed."""
MOST, LEAST = 60, 8
"""Upper and lower bound of the limit on evictions in flight.

The upper bound leaves connections for all other requests, and the lower one keeps a small API server busy.
"""
SLOW = (0.4, 2.0)
"""Bounds in seconds of a slow response; an idle API server takes a tenth of a second.

A response above the upper bound waited for an admission webhook and is ignored.
"""
NARROWED, WIDENED = 0.95, 0.25
"""Factor on the limit of `Window` after a slow response, and increment after a fast one.

With a fifth of the responses slow, a limit of about 20 stays constant.
"""


class Turns:
    """Queue of tasks that wait for a turn, with the nodes served in rotation. For one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        """Return whether any task waits."""
        return bool(self._waiting)

    async def turn(self, node: str, seconds: float, give: Callable[[], None]) -> bool:
        """Wait for a turn, which `give` may grant at once, and return whether it came within `seconds`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, deque()).append(future)
        give()
        # Not `wait_for`: since Python 3.12 it drops a result that arrives at the timeout, which would lose a slot.
        await asyncio.wait({future}, timeout=max(0.0, seconds))
        if future.done():
            return True
        future.cancel()
        self._leave(node, future)
        return False

    def give_one(self) -> bool:
        """Grant a turn to the node at the head of the rotation; return whether its task was still waiting."""
        node = next(iter(self._waiting))
        queue = self._waiting.pop(node)
        future = queue.popleft()
        if queue:
            self._waiting[node] = queue  # to the end of the rotation
        if future.done():
            return False
        future.set_result(None)
        return True

    def _leave(self, node: str, future: asyncio.Future[None]) -> None:
        queue = self._waiting.get(node)
        if queue is not None and future in queue:
            queue.remove(future)
            if not queue:
                del self._waiting[node]


class Pace:
    """Rate limiter that grants at most `per_second` turns in any second. For one event loop."""

    def __init__(self, per_second: float) -> None:
        self._per_second = self._tokens = per_second
        self._counted = 0.0
        self._turns = Turns()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, node: str, seconds: float) -> bool:
        """Wait for a turn, with the nodes served in rotation; return whether it came within `seconds`."""
        return await self._turns.turn(node, seconds, self._give)

    def rest(self, seconds: float) -> None:
        """Grant no turns for `seconds`, because the API server reported that it is busy."""
        self._count()
        self._tokens = min(self._tokens, 1 - seconds * self._per_second)

    def _count(self) -> None:
        """Add the tokens for the elapsed time, up to those of one second."""
        now = asyncio.get_running_loop().time()
        earned = (now - self._counted) * self._per_second
        self._tokens, self._counted = min(self._per_second, self._tokens + earned), now

    def _give(self) -> None:
        """Grant the available turns, and schedule the next call if tasks still wait."""
        self._count()
        while self._turns and self._tokens >= 1:
            if self._turns.give_one():
                self._tokens -= 1
        if self._turns and self._timer is None:
            seconds = (1 - self._tokens) / self._per_second
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._give()


_paces: WeakKeyDictionary[asyncio.AbstractEventLoop, Pace] = WeakKeyDictionary()


def pace() -> Pace:
    """Return the rate limiter of the running loop; a process that serves functions has one loop."""
    loop = asyncio.get_running_loop()
    if loop not in _paces:
        _paces[loop] = Pace(per_second(os.environ))
    return _paces[loop]


def per_second(environment: Mapping[str, str]) -> float:
    """Return `$EVICTIONS_PER_SECOND`. Raises `ValueError` if it is not a number of at least 1."""
    words = environment.get(VARIABLE) or str(PER_SECOND)
    try:
        wanted = float(words)
    except ValueError:
        wanted = 0.0
    if not 1 <= wanted < float("inf"):
        raise ValueError(f"{VARIABLE}={words} is no number of 1 or more; unset it for {PER_SECOND:g}")
    return wanted


def pause(shortest: float, usual: float, unanswered: int) -> float:
    """Return the seconds between the start of the last eviction and that of the next one.

    `shortest` is the minimum, `usual` the usual response time, and `unanswered` the number of evictions without a
    response.
    """
    if unanswered >= CROWD:
        return math.ldexp(CROWD_SECONDS, unanswered - CROWD)
    return max(shortest, USUAL_TIMES * usual)


class Window:
    """Limit on the evictions in flight that no budget covers, with the nodes served in rotation. For one event loop.

    A task gets a slot here before its turn from `Pace`. In the opposite order, a task with a turn but no slot would
    waste the turn. The node whose pass started first would then block all others until its pass ends.
    """

    def __init__(self) -> None:
        self.size = float(MOST)
        self._inside = 0
        self._turns = Turns()

    async def turn(self, node: str, until: float) -> bool:
        """Wait for a slot, and return whether it came before `until` (monotonic).

        The caller must then call `put` or `leave`.
        """
        return await self._turns.turn(node, until - time.monotonic(), self._admit)

    def put(self, task: asyncio.Task[Any]) -> None:
        """Use the slot for an eviction that has started; `task` ends with the response."""
        task.add_done_callback(partial(self._answered, time.monotonic()))

    def leave(self) -> None:
        """Free a slot, after a response or without having started an eviction."""
        self._inside -= 1
        self._admit()

    def learn(self, seconds: float) -> None:
        """Adapt the limit to the duration of a response."""
        if seconds < SLOW[0]:
            self.size = min(MOST, self.size + WIDENED)
        elif seconds < SLOW[1]:
            self.size = max(LEAST, self.size * NARROWED)

    def _answered(self, started: float, _task: asyncio.Task[Any]) -> None:
        self.learn(time.monotonic() - started)
        self.leave()

    def _admit(self) -> None:
        while self._turns and self._inside < int(self.size):
            if self._turns.give_one():
                self._inside += 1


class Usual:
    """The usual response time without the API server's sleep: the median of recent responses."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        """Record the duration of a response."""
        if seconds < SLEPT_SECONDS:
            self._took.append(seconds)

    def seconds(self) -> float:
        """Return the usual response time, 0 if none is known yet."""
        return sorted(self._took)[len(self._took) // 2] if self._took else 0.0


class Lane:
    """The evictions of this process under one budget. For one event loop."""

    def __init__(self, usual: Usual) -> None:
        self._usual = usual
        self._unanswered: set[asyncio.Task[Any]] = set()
        self._newest: asyncio.Task[Any] | None = None
        self._started = -math.inf
        self._shortest = 0.0

    @property
    def is_held(self) -> bool:
        """Return whether any eviction has no response yet."""
        return bool(self._unanswered)

    async def turn(self, until: float) -> bool:
        """Wait until the next eviction may start, and return whether that came before `until` (monotonic).

        The caller must then start the eviction and call `put` at once.
        """
        while (rest := min(self._due(), until) - time.monotonic()) > 0:
            await asyncio.wait(set(self._unanswered), timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        return self._due() <= time.monotonic()

    def put(self, task: asyncio.Task[Any]) -> None:
        """Register an eviction that has started; `task` ends with the response."""
        self._newest, self._started = task, time.monotonic()
        self._shortest = random.uniform(*OVERTAKEN)  # noqa: S311 - a jitter, no secret
        self._unanswered.add(task)
        task.add_done_callback(partial(self._answered, self._started))

    def _answered(self, started: float, task: asyncio.Task[Any]) -> None:
        self._unanswered.discard(task)
        self._usual.add(time.monotonic() - started)

    def _due(self) -> float:
        if self._newest is None or self._newest.done():
            return -math.inf
        return self._started + pause(self._shortest, self._usual.seconds(), len(self._unanswered))
