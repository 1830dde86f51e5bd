"""When the next eviction under a budget may start, whichever node or look it is for.

Side by side evictions under one budget collide: the server reads the budget, writes its count, and sleeps for half a
second where another one, or the disruption controller, wrote in between. Who sleeps is overtaken. But who sleeps wakes
and writes, too; so the more have no answer, the longer the next one waits (design rule 9). Without that, two processes
on a busy server had each other's evictions collide twenty times, at which the server gives them up.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from functools import partial
from typing import Any

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


def pause(shortest: float, usual: float, unanswered: int) -> float:
    """Seconds between the start of the last one and of the next, behind so many without an answer."""
    if unanswered >= CROWD:
        return math.ldexp(CROWD_SECONDS, unanswered - CROWD)
    return max(shortest, USUAL_TIMES * usual)


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
