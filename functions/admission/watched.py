"""What `validate` answers from: the NodeMaintenance objects by their nodes, and the budgets by their namespaces.

Both are watched, so a question costs no list of them, however many there are. Nodes and pods are not: a heartbeat of a
node, or a pod that starts, costs nothing here; they are read for the one node that a question is about.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from contextlib import aclosing
from typing import Any

from kube.backoff import pauses
from kube.budgets import BUDGETS, Budget
from kube.door.api import Api
from kube.door.api_errors import ApiError, NotFound
from kube.door.list_watch import Witness, follow
from kube.maintenance.groups import GROUPS, Group
from kube.maintenance.objects import node_name, trimmed
from kube.paths import Object
from kube.trimming import trimmed_budget

FIRST_LOOK, LONGEST_LOOK = 2.0, 60.0
"""Seconds between looks whether the CRD of an absent group was installed, doubling; until then `begin` refuses."""

LISTS = 4
"""Lists of pods read at a time: that of a full node takes ten milliseconds of a core, and others wait meanwhile."""


class Refused(Witness):
    """Lets a stream try again what the server refuses; the follower says why in the log."""

    def failed(self, error: ApiError) -> None:
        """Bear it."""


class Watched:
    """Watches through `api`. Run `run` beside what asks.

    Attributes:
        reading: held while the pods of a node are read.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._maintenances: dict[str, dict[str, Object]] = defaultdict(dict)
        self._budgets: dict[str, dict[str, Object]] = defaultdict(dict)
        self._unlisted = {BUDGETS, *(group.path for group in GROUPS.values())}
        self._is_known = asyncio.Event()
        self.reading = asyncio.Semaphore(LISTS)
        self._under_way: dict[str, asyncio.Task[list[Object]]] = {}

    @property
    def ready(self) -> bool:
        """Whether all that was there at the start is known."""
        return self._is_known.is_set()

    def of_node(self, node: str) -> list[Object]:
        """The maintenances that name a node, in any group, trimmed."""
        return list(self._maintenances.get(node, {}).values())

    def budgets_in(self, namespaces: Collection[str]) -> list[Budget]:
        """The budgets of these namespaces, trimmed."""
        return [budget for namespace in namespaces for budget in self._budgets.get(namespace, {}).values()]

    async def until_ready(self, seconds: float) -> None:
        """Wait for that. Raises `asyncio.TimeoutError` when it takes longer."""
        await asyncio.wait_for(self._is_known.wait(), seconds)

    async def shared(self, node: str, read: Callable[[], Coroutine[Any, Any, list[Object]]]) -> list[Object]:
        """What `read` gives of a node's pods; while that is under way, all who ask about the node wait for the same.

        Who waits no longer ends nobody else's wait.
        """
        task = self._under_way.get(node)
        if task is None:
            task = self._under_way[node] = asyncio.create_task(read())
            task.add_done_callback(lambda _: self._under_way.pop(node))
        return await asyncio.shield(task)

    async def run(self) -> None:
        """Watch until cancelled; raises what ends a watch for good."""
        await asyncio.gather(self._follow_budgets(), *(self._group(group) for group in GROUPS.values()))

    async def _group(self, group: Group) -> None:
        for pause in pauses(FIRST_LOOK, LONGEST_LOOK):
            try:
                await self._follow_group(group)
            except NotFound:  # the CRD is not, or no longer, there; and so none of its objects
                self._forget(group)
                self._listed(group.path)
            await asyncio.sleep(pause)

    async def _follow_group(self, group: Group) -> None:
        async with aclosing(follow(self._api, group.path, keep=trimmed, witness=Refused())) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    self._listed(group.path)
                    continue
                item = {**change.object, "apiVersion": group.api_version}
                _put(self._maintenances, node_name(item), item, gone=change.kind == "DELETED")

    async def _follow_budgets(self) -> None:
        async with aclosing(follow(self._api, BUDGETS, keep=trimmed_budget, witness=Refused())) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    self._listed(BUDGETS)
                    continue
                namespace = change.object["metadata"]["namespace"]
                _put(self._budgets, namespace, change.object, gone=change.kind == "DELETED")

    def _listed(self, path: str) -> None:
        self._unlisted.discard(path)
        if not self._unlisted:
            self._is_known.set()

    def _forget(self, group: Group) -> None:
        items = [item for found in self._maintenances.values() for item in found.values()]
        for item in items:
            if item["apiVersion"] == group.api_version:
                _put(self._maintenances, node_name(item), item, gone=True)


def _put(index: dict[str, dict[str, Object]], key: str, item: Object, *, gone: bool) -> None:
    uid = item["metadata"]["uid"]
    if not gone:
        index[key][uid] = item
        return
    index[key].pop(uid, None)
    if not index[key]:
        del index[key]
