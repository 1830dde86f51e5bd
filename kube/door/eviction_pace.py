"""How fast one process sends evictions: so many a second in all, in turn between nodes.

The server has a limit of its own and says so (429 with `Retry-After`); all wait for it then, as the limit is theirs.

How many may be under way at once (`Window`) is learned from what the answers take: a server that is short of processor
time answers all the slower the more it is asked, and everybody else with it, our own other steps first.

Under one budget evictions start one after another, whichever node or look they are for (`Lane`). Side by side they
collide: the server reads the budget, writes its count, and sleeps for half a second where another one, or the
disruption controller, wrote in between. Who sleeps is overtaken. But who sleeps wakes and writes, too; so behind many
without an answer the next one waits (design rule 9). Without that, two processes on a busy server had each other's
evictions collide twenty times, at which the server gives them up.
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
"""Of the environment, and what it is without: more than an API server of a few cores gets done."""
OVERTAKEN = (0.1, 0.15)
"""Seconds that an eviction without an answer holds up the next one at least, at random, so that two processes do not
keep step."""
USUAL_TIMES = 1.5
"""As often what an answer usually takes: where all are slow, one that is not answered yet does not sleep."""
CROWD, CROWD_SECONDS = 5, 1.0
"""So many without an answer hold up the next one so long, each further one twice as long. Evictions that collided have
slept by then; what takes longer is an admission webhook, for which the others need not wait for ever. Measured with one
process and two, on a busy machine: with two or three too few get a chance at a time, without end too many sleep."""
SLEPT_SECONDS = 0.45
"""An answer that took longer slept: for half a second, less a tenth at most."""
REMEMBERED = 16
"""Answers of which the usual is known."""
MOST, LEAST = 60, 8
"""Evictions under way at once: connections, of those that all requests share; and what keeps a small server busy."""
SLOW = (0.4, 2.0)
"""Seconds. A quiet server answers in a tenth of one; what takes longer than this waits for an admission webhook."""
NARROWED, WIDENED = 0.95, 0.25
"""What a slow answer leaves of the window, and what another one adds: a fifth of them may be slow."""


class Turns:
    """Who waits for a turn, by node: the nodes take turns. For one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    async def turn(self, node: str, seconds: float, give: Callable[[], None]) -> bool:
        """Wait for a turn, which `give` may give at once; whether it came within `seconds`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, deque()).append(future)
        give()
        # Not `wait_for`: since Python 3.12 it gives up also what comes as time runs out, and a place would be lost.
        await asyncio.wait({future}, timeout=max(0.0, seconds))
        if future.done():
            return True
        future.cancel()
        self._leave(node, future)
        return False

    def give_one(self) -> bool:
        """Give a turn to the node that has waited for longest since its last one; whether somebody still wanted it."""
        node = next(iter(self._waiting))
        queue = self._waiting.pop(node)
        future = queue.popleft()
        if queue:
            self._waiting[node] = queue  # behind all others
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
    """Gives turns, at most `per_second` of them in any second. For one event loop."""

    def __init__(self, per_second: float) -> None:
        self._per_second = self._tokens = per_second
        self._counted = 0.0
        self._turns = Turns()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, node: str, seconds: float) -> bool:
        """Wait for a turn, the nodes that wait taking turns; whether it came within `seconds`."""
        return await self._turns.turn(node, seconds, self._give)

    def rest(self, seconds: float) -> None:
        """Give no turn for so long: the server has said that it is busy."""
        self._count()
        self._tokens = min(self._tokens, 1 - seconds * self._per_second)

    def _count(self) -> None:
        """A second's turns at most are left of the time in which nobody wanted one."""
        now = asyncio.get_running_loop().time()
        earned = (now - self._counted) * self._per_second
        self._tokens, self._counted = min(self._per_second, self._tokens + earned), now

    def _give(self) -> None:
        """Give the turns that there are; come again when there is another one."""
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
    """The one of the running loop: a process of functions has one loop."""
    loop = asyncio.get_running_loop()
    if loop not in _paces:
        _paces[loop] = Pace(per_second(os.environ))
    return _paces[loop]


def per_second(environment: Mapping[str, str]) -> float:
    """`$EVICTIONS_PER_SECOND`. Raises `ValueError` for what is no number of 1 or more."""
    words = environment.get(VARIABLE) or str(PER_SECOND)
    try:
        wanted = float(words)
    except ValueError:
        wanted = 0.0
    if not 1 <= wanted < float("inf"):
        raise ValueError(f"{VARIABLE}={words} is no number of 1 or more; unset it for {PER_SECOND:g}")
    return wanted


def pause(shortest: float, usual: float, unanswered: int) -> float:
    """Seconds between the start of the last one and of the next, behind so many without an answer."""
    if unanswered >= CROWD:
        return math.ldexp(CROWD_SECONDS, unanswered - CROWD)
    return max(shortest, USUAL_TIMES * usual)


class Window:
    """How many evictions outside of budgets are under way at once, the nodes taking turns. For one event loop.

    A place comes before a turn of the `Pace`: who got a turn and no place would waste it, and the node whose look began
    first would stand in the way of all others until its look ends.
    """

    def __init__(self) -> None:
        self.size = float(MOST)
        self._inside = 0
        self._turns = Turns()

    async def turn(self, node: str, until: float) -> bool:
        """Wait for a place, to be put in or left; whether that came before `until` (monotonic)."""
        return await self._turns.turn(node, until - time.monotonic(), self._admit)

    def put(self, task: asyncio.Task[Any]) -> None:
        """It has started; the task ends with its answer."""
        task.add_done_callback(partial(self._answered, time.monotonic()))

    def leave(self) -> None:
        """Nothing was started in the place."""
        self._inside -= 1
        self._admit()

    def learn(self, seconds: float) -> None:
        """An answer took so long."""
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
    """What an answer takes where the server does not sleep: the median of the last ones."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        """An answer took so long."""
        if seconds < SLEPT_SECONDS:
            self._took.append(seconds)

    def seconds(self) -> float:
        """The usual time; 0 as long as there is none."""
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
        """Some have no answer yet."""
        return bool(self._unanswered)

    async def turn(self, until: float) -> bool:
        """Wait until the next one may start, and is put at once; whether that came before `until` (monotonic)."""
        while (rest := min(self._due(), until) - time.monotonic()) > 0:
            await asyncio.wait(set(self._unanswered), timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        return self._due() <= time.monotonic()

    def put(self, task: asyncio.Task[Any]) -> None:
        """It has started; the task ends with its answer."""
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
