"""Test that concurrent admission reviews for one node share a single request that lists its pods."""

from __future__ import annotations

import asyncio

import pytest

from functions.admission.watch_cache import WatchCache
from kube.client.sync_client import SyncClient
from kube.paths import Object


def test_concurrent_callers_share_one_pod_list(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that concurrent reviews of one node share a single request that lists its pods.

    A cancelled caller does not cancel the request for the other callers. A later caller, or a caller for another
    node, sends a new request.
    """

    async def collect_pod_lists() -> tuple[list[list[Object]], int, list[Object], list[Object]]:
        cache, may_respond, read_count = WatchCache(client.api), asyncio.Event(), 0

        async def list_objects(_path: str, **_options: str) -> Object:
            nonlocal read_count
            read_count += 1
            number = read_count
            await may_respond.wait()
            return {"items": [{"reading": number}]}

        monkeypatch.setattr(client.api, "list", list_objects)
        callers = [asyncio.create_task(cache.list_pods("node-1")) for _ in range(5)]
        while not read_count:
            await asyncio.sleep(0)
        callers.pop(0).cancel()
        may_respond.set()
        lists = await asyncio.gather(*callers)
        concurrent_read_count = read_count
        return (
            lists,
            concurrent_read_count,
            await cache.list_pods("node-1"),
            await cache.list_pods("node-2"),
        )

    lists, concurrent_read_count, later_list, other_list = asyncio.run(collect_pod_lists())

    assert (lists, concurrent_read_count) == ([[{"reading": 1}]] * 4, 1)
    assert (later_list, other_list) == ([{"reading": 2}], [{"reading": 3}])
