"""How fast one process sends evictions: so many a second in all, in turn between nodes.

The server has a limit of its own and says so (429 with `Retry-After`); all wait for it then, as the limit is theirs.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from weakref import WeakKeyDictionary

VARIABLE, PER_SECOND = "EVICTIONS_PER_SECOND", 100.0
"""Of the environment, and what it is without: more than an API server of a few cores gets done."""


class Pace:
    """Gives turns, at most `per_second` of them in any second. For one event loop."""

    def __init__(self, per_second: float) -> None:
        self._per_second = self._tokens = per_second
        self._counted = 0.0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, node: str, seconds: float) -> bool:
        """Wait for a turn, the nodes that wait taking turns; whether it came within `seconds`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, deque()).append(future)
        self._give()
        try:
            await asyncio.wait_for(future, seconds)
        except asyncio.TimeoutError:
            self._leave(node, future)
            return False
        return True

    def _leave(self, node: str, future: asyncio.Future[None]) -> None:
        queue = self._waiting.get(node)
        if queue is not None and future in queue:
            queue.remove(future)
            if not queue:
                del self._waiting[node]

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
        while self._waiting and self._tokens >= 1:
            if self._give_one():
                self._tokens -= 1
        if self._waiting and self._timer is None:
            seconds = (1 - self._tokens) / self._per_second
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._give()

    def _give_one(self) -> bool:
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
