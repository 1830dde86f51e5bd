"""Runs the asyncio tasks of a long-running process until it receives a signal or a task fails."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class TaskSupervisor:
    """Asynchronous context manager for tasks, which cancels those that still run at the end of its block.

    `failure` receives the exception of the first task that fails. A task may also end or be cancelled.
    """

    async def __aenter__(self) -> TaskSupervisor:
        self._running: set[asyncio.Task[None]] = set()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.failure.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that runs concurrently with the supervisor's other tasks."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._handle_done)
        return task

    def _handle_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or self.failure.done():
            return
        if error := task.exception():
            self.failure.set_exception(error)


def create_stop_event() -> asyncio.Event:
    """Return an asyncio event that is set when the process receives SIGTERM or SIGINT."""
    stop_event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_event.set)
    return stop_event


async def wait_until_stopped(stop_event: asyncio.Event, *supervisors: TaskSupervisor) -> None:
    """Wait until `stop_event` is set or a task of a supervisor fails; raise the exception of a failed task."""
    stopped = asyncio.ensure_future(stop_event.wait())
    futures: list[asyncio.Future[Any]] = [stopped, *(supervisor.failure for supervisor in supervisors)]
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    for future in done:
        future.result()
