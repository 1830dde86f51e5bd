"""Tests of concurrent requests: the order of results, the first error, and no request that outlives its caller."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kube.client.api_errors import Conflict
from kube.client.concurrent_requests import together
from kube.client.sync_client import Cluster
from kube.nodes import NODES
from localcluster.cluster import LocalCluster


async def _refused() -> None:
    raise Conflict(409, "written meanwhile")


def test_an_error_is_raised_when_the_others_have_ended() -> None:
    ended: list[str] = []

    async def slow() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append("slow")

    with pytest.raises(Conflict, match="written meanwhile"):
        asyncio.run(together(_refused(), slow()))
    assert ended == ["slow"]


def test_results_come_in_the_order_of_the_calls() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(together(after(3), after(1), after(2))) == [3, 1, 2]


def test_closing_a_cluster_ends_what_is_still_at_work(cluster: LocalCluster) -> None:
    door = Cluster(str(cluster.kubeconfig))
    ended = threading.Event()

    async def hanging() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def started() -> asyncio.Task[None]:
        task = asyncio.create_task(hanging())
        await door.api.list(NODES)
        return task

    task = door.run(started())
    door.close()
    assert ended.is_set()
    assert task.cancelled()
