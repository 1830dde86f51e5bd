"""A group of asyncio tasks that reports the first failure and cancels all tasks at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class TaskSupervisor:
    """Asynchronous context manager that runs tasks until its block ends; a task may end, fail or be cancelled."""

    async def __aenter__(self) -> TaskSupervisor:
        self._running: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._failure.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that runs concurrently with the other tasks."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._handle_done)
        return task

    async def wait_for_failure(self) -> None:
        """Wait until a task fails, and raise its exception."""
        await self._failure

    def _handle_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or self._failure.done():
            return
        if error := task.exception():
            self._failure.set_exception(error)
