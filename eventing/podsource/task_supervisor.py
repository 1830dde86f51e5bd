"""A group of asyncio tasks that reports the first failure and cancels all tasks at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Tasks:
    """Asynchronous context manager that runs tasks until its block ends; a task may end, fail or be cancelled."""

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
        """Start a task that runs concurrently with the others."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def failure(self) -> None:
        """Wait until a task fails, and raise its exception."""
        await self._failed

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or self._failed.done():
            return
        if error := task.exception():
            self._failed.set_exception(error)
