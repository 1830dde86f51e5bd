"""Tests for concurrent API requests: the order of results, the first error, and the cancellation of requests."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kube.client.api import gather_all
from kube.client.api_errors import Conflict
from kube.client.sync_client import SyncClient
from kube.nodes import NODES_PATH
from localcluster.cluster import LocalCluster


async def _raise_conflict() -> None:
    raise Conflict(409, "written meanwhile")


def test_first_error_is_raised_after_all_concurrent_calls_have_ended() -> None:
    ended_calls: list[str] = []

    async def finish_later() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        ended_calls.append("slow")

    with pytest.raises(Conflict, match="written meanwhile"):
        asyncio.run(gather_all(_raise_conflict(), finish_later()))
    assert ended_calls == ["slow"]


def test_results_of_concurrent_calls_are_in_order_of_calls() -> None:
    async def return_after(iterations: int) -> int:
        for _ in range(iterations):
            await asyncio.sleep(0)
        return iterations

    assert asyncio.run(gather_all(return_after(3), return_after(1), return_after(2))) == [3, 1, 2]


def test_close_cancels_running_tasks(cluster: LocalCluster) -> None:
    client = SyncClient(str(cluster.kubeconfig))
    is_cancelled = threading.Event()

    async def wait_forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    async def start_waiting_task() -> asyncio.Task[None]:
        task = asyncio.create_task(wait_forever())
        await client.api.list(NODES_PATH)
        return task

    task = client.run(start_waiting_task())
    client.close()
    assert is_cancelled.is_set()
    assert task.cancelled()
