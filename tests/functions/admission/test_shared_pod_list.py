"""Test of the shared pod list: concurrent reviews for one node read its pods once."""

from __future__ import annotations

import asyncio

from functions.admission.watch_cache import Watched
from kube.client.sync_client import Cluster
from kube.paths import Object


def test_who_asks_at_the_same_time_gets_the_same_reading(door: Cluster) -> None:
    """Check that concurrent callers for one node share a single read of its pods.

    A cancelled caller does not cancel the read for the others. A later caller, or a caller for another node, causes its
    own read.
    """

    async def asked() -> tuple[list[list[Object]], int, list[Object], list[Object]]:
        watched, go, readings = Watched(door.api), asyncio.Event(), 0

        async def read() -> list[Object]:
            nonlocal readings
            readings += 1
            number = readings
            await go.wait()
            return [{"reading": number}]

        crowd = [asyncio.create_task(watched.shared("node-1", read)) for _ in range(5)]
        await asyncio.sleep(0)
        crowd.pop(0).cancel()
        go.set()
        answers = await asyncio.gather(*crowd)
        at_once = readings
        return answers, at_once, await watched.shared("node-1", read), await watched.shared("node-2", read)

    answers, at_once, later, other = asyncio.run(asked())

    assert (answers, at_once) == ([[{"reading": 1}]] * 4, 1)
    assert (later, other) == ([{"reading": 2}], [{"reading": 3}])
