"""Tasks that stand and fall together: what dies is never missed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Tasks:
    """Runs tasks until it is left. An asynchronous context manager; a task may end, be cancelled, or fail."""

    async def __aenter__(self) -> Tasks:
        self._running: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it beside the others."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def failure(self) -> None:
        """Wait until a task fails; raises what it raised."""
        await self._failed

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or self._failed.done():
            return
        if error := task.exception():
            self._failed.set_exception(error)
