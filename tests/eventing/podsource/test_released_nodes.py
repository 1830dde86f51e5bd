"""Test that PodSource frees all data about a node after the node's maintenance."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from eventing.podsource.draining_node import DrainingNode
from eventing.podsource.hint_scheduler import HintHistory
from eventing.podsource.sender import HintBuffer, HintSender
from eventing.podsource.watcher import PodSource
from eventing.task_supervisor import TaskSupervisor
from kube.client.list_watch import INITIAL_EVENTS_END
from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from tests.kube.samples import make_budget, make_maintenance, make_pod

UNREACHABLE_SINK = "http://127.0.0.1:1"
STATE_CLASSES = (DrainingNode, HintBuffer, HintHistory)
"""The classes whose instances hold PodSource's data about a node."""


class FakeApi:
    """An API client with one PDB, and with the NodeMaintenances that a test sends; each node has the same pod."""

    def __init__(self) -> None:
        self.maintenances: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()

    async def list(self, path: str, **_: Any) -> Object:
        return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}

    async def watch(self, path: str, **_: Any) -> AsyncIterator[tuple[str, Object]]:
        if path == MEDIK8S.path:
            while True:
                yield await self.maintenances.get()
        if path.endswith("/pods"):
            yield "ADDED", make_pod(labels={"app": "db"})
        if path.endswith("/poddisruptionbudgets"):
            budget = make_budget(allowed=1)
            yield "ADDED", {**budget, "metadata": {**budget["metadata"], "uid": "b", "resourceVersion": "1"}}
        yield "BOOKMARK", {"metadata": {"resourceVersion": "2", "annotations": {INITIAL_EVENTS_END: "true"}}}
        await asyncio.Event().wait()

    def send_maintenance(self, change_type: str, phase: str) -> None:
        """Send a watch event for a NodeMaintenance that has begun."""
        maintenance = {**make_maintenance({"phase": phase}), "apiVersion": MEDIK8S.api_version}
        self.maintenances.put_nowait((change_type, maintenance))


def count_states() -> int:
    """Return the number of objects in memory that hold PodSource's data about a node."""
    return sum(type(tracked) in STATE_CLASSES for tracked in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_state_of_released_node_is_freed_without_garbage_collection(phase: str) -> None:
    """Check that all data about a node is freed when its maintenance ends, even with unsent hints.

    Otherwise, the memory would grow with each maintenance, until a rare full garbage collection.
    """

    async def drain_node_three_times() -> list[int]:
        api, tasks = FakeApi(), TaskSupervisor()
        counts: list[int] = []
        async with HintSender(UNREACHABLE_SINK, tasks) as sender, tasks:
            PodSource(api, sender, tasks).start()  # type: ignore[arg-type]
            for _ in range(3):
                api.send_maintenance("ADDED", "Running")
                while count_states() < len(STATE_CLASSES):
                    await asyncio.sleep(0.02)
                api.send_maintenance("MODIFIED", phase)
                api.send_maintenance("DELETED", phase)
                await asyncio.sleep(0.2)
                counts.append(count_states())
        return counts

    gc.collect()
    gc.disable()
    try:
        counts = asyncio.run(drain_node_three_times())
    finally:
        gc.enable()

    assert counts == [0, 0, 0]
