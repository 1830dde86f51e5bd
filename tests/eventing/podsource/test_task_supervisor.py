"""Tests of a group of tasks in which one failure ends all."""

from __future__ import annotations

import asyncio

import pytest

from eventing.podsource.task_supervisor import Tasks


def test_a_task_that_dies_is_heard_of_and_ends_the_others() -> None:
    """Check that a failed task raises its error in the process and cancels the other tasks."""
    ended: list[str] = []

    async def dies() -> None:
        raise ValueError("worn out")

    async def stays() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("the other one")

    async def run() -> None:
        async with Tasks() as tasks:
            tasks.start(stays())
            await asyncio.sleep(0)
            tasks.start(dies())
            await asyncio.wait_for(tasks.failure(), 10)

    with pytest.raises(ValueError, match="worn out"):
        asyncio.run(run())
    assert ended == ["the other one"]


def test_a_task_that_ends_or_is_cancelled_is_no_failure() -> None:
    async def run() -> None:
        async with Tasks() as tasks:
            tasks.start(asyncio.sleep(0))
            tasks.start(asyncio.sleep(1000)).cancel()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(tasks.failure()), 0.05)

    asyncio.run(run())
