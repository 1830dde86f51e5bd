"""Tests for the task supervisor, in which a failed task cancels all other tasks."""

from __future__ import annotations

import asyncio

import pytest

from eventing.task_supervisor import TaskSupervisor


def test_error_of_failed_task_is_raised_and_other_tasks_are_cancelled() -> None:
    """Check that the error of a failed task is raised to the waiting caller, and that the other tasks are cancelled."""
    cancelled_tasks: list[str] = []

    async def fail() -> None:
        raise ValueError("broken")

    async def wait_forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled_tasks.append("other task")

    async def run_tasks() -> None:
        async with TaskSupervisor() as tasks:
            tasks.start(wait_forever())
            await asyncio.sleep(0)
            tasks.start(fail())
            await asyncio.wait_for(tasks.failure, 10)

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run_tasks())
    assert cancelled_tasks == ["other task"]


def test_completed_or_cancelled_task_is_not_a_failure() -> None:
    async def run_tasks() -> None:
        async with TaskSupervisor() as tasks:
            tasks.start(asyncio.sleep(0))
            tasks.start(asyncio.sleep(1000)).cancel()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(tasks.failure), 0.05)

    asyncio.run(run_tasks())
