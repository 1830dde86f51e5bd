"""Nodes and NodeMaintenances as they are now, followed once for all who look at the console."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from console.operations.errors import OperationError
from console.operations.watching import served_groups
from console.web.rows import NodeFacts
from kube.door.cluster import Cluster
from kube.door.errors import ApiError, Unavailable
from kube.door.following import Change, follow, merged
from kube.maintenance.groups import Group
from kube.nodes import NODES
from kube.paths import Object

FIRST_SECONDS = 10.0
"""How long the first viewer waits for the first lists."""
AGAIN_SECONDS = 2.0
"""Between attempts to follow what may not be followed, or is not there."""
GROUPS_SECONDS = 30.0
"""How often it is looked whether a CRD was installed or removed."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """What is there: nodes by name, maintenances oldest first, the groups they are of, and a number that grows."""

    version: int = 0
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    maintenances: tuple[Object, ...] = ()
    groups: tuple[Group, ...] = ()


class Live:
    """Follows the cluster on its loop thread and wakes waiting threads; close it before the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._state = State()
        self._error: ApiError = Unavailable(0, "nodes and maintenances are not read yet")
        self._following = cluster.run(self._begin())

    def close(self) -> None:
        """End the following, with all its connections."""
        self._cluster.run(self._end())

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._follow_always())

    async def _end(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    def now(self, seconds: float = FIRST_SECONDS) -> State:
        """What is there; waits for the first lists. Raises the `ApiError` that keeps them away."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.version > 0, seconds)
            if not self._state.version:
                raise self._error
            return self._state

    def after(self, version: int, seconds: float) -> State | None:
        """The first state newer than `version`, None when there is none within `seconds`."""
        return self.when(lambda state: state.version > version, seconds)

    def when(self, holds: Callable[[State], bool], seconds: float) -> State | None:
        """The first state of which it holds, None when there is none within `seconds`."""
        with self._changed:
            return self._state if self._changed.wait_for(lambda: holds(self._state), seconds) else None

    async def _follow_always(self) -> None:
        """Follow whatever groups are served; begin anew when that changes or the server refuses."""
        while True:
            try:
                groups = await served_groups(self._cluster.api)
                await self._follow_until_other(groups)
                continue
            except ApiError as error:
                self._error = error
            except OperationError as error:  # no CRD is installed
                self._error = Unavailable(0, str(error))
            log.warning("nodes and maintenances cannot be watched: %s", self._error.message)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _follow_until_other(self, groups: list[Group]) -> None:
        """Follow until other groups are served; raises the `ApiError` that ends it before."""
        tasks = {asyncio.ensure_future(self._follow(groups)), asyncio.ensure_future(self._until_other(groups))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_other(self, groups: list[Group]) -> None:
        while await served_groups(self._cluster.api) == groups:
            await asyncio.sleep(GROUPS_SECONDS)

    async def _follow(self, groups: list[Group]) -> None:
        """Take in every change; publish a state once all lists are read, and then when it makes a difference."""
        nodes: dict[str, NodeFacts] = {}
        items: dict[str, Object] = {}
        unread = set(range(len(groups) + 1))
        streams = [follow(self._cluster.api, path) for path in (NODES, *(group.path for group in groups))]
        async with aclosing(merged(*streams)) as changes:
            async for number, change in changes:
                if change.kind == "SYNCED":
                    unread.discard(number)
                    differs = True
                else:
                    differs = _take_node(nodes, change) if number == 0 else _take_item(items, change)
                if differs and not unread:
                    self._publish(nodes, items, groups)

    def _publish(self, nodes: dict[str, NodeFacts], items: dict[str, Object], groups: list[Group]) -> None:
        maintenances = tuple(sorted(items.values(), key=lambda item: item["metadata"]["creationTimestamp"]))
        with self._changed:
            # the clock, so that no version of an earlier process, which a browser may still show, comes again
            version = max(self._state.version + 1, int(time.time() * 1000))
            self._state = State(version, dict(nodes), maintenances, tuple(groups))
            self._changed.notify_all()


def _take_node(nodes: dict[str, NodeFacts], change: Change) -> bool:
    """Whether it makes a difference: a node's heartbeats do not."""
    facts = NodeFacts.of(change.object)
    if change.kind == "DELETED":
        return nodes.pop(facts.name, None) is not None
    known, nodes[facts.name] = nodes.get(facts.name), facts
    return known != facts


def _take_item(items: dict[str, Object], change: Change) -> bool:
    uid = change.object["metadata"]["uid"]
    if change.kind == "DELETED":
        items.pop(uid, None)
    else:
        items[uid] = change.object
    return True
