"""The webhook's watch caches: NodeMaintenance objects by node, and budgets by namespace.

Both are watched, so a review does not have to list them, however many exist. Nodes and pods are not watched, so
heartbeats and starting pods cause no load here. They are read only for the node of a review.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from contextlib import aclosing
from typing import Any

from kube.backoff import pauses
from kube.budgets import BUDGETS, Budget
from kube.client.api import Api
from kube.client.api_errors import ApiError, NotFound
from kube.client.list_watch import Witness, follow
from kube.maintenance.groups import GROUPS, Group
from kube.maintenance.objects import node_name, trimmed
from kube.paths import Object
from kube.trimming import trimmed_budget

FIRST_LOOK, LONGEST_LOOK = 2.0, 60.0
"""Minimum and maximum seconds between checks for the CRD of a missing API group; the interval doubles.

Until the webhook finds a new CRD, invalid objects of that group are created, and the step `begin` fails on them.
"""

LISTS = 4
"""Maximum concurrent lists of pods.

The list of a full node takes ten milliseconds of CPU time, in which other reviews wait.
"""


class Refused(Witness):
    """Observer that makes a watch retry after a rejected request; the watch logs the reason."""

    def failed(self, error: ApiError) -> None:
        """Ignore the error, so that the watch retries."""


class Watched:
    """Caches that watches through `api` keep up to date; `run` must be running while they are used.

    Attributes:
        reading: Semaphore to hold while the pods of a node are read.
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
        """Return whether all objects that existed at the start have been received."""
        return self._is_known.is_set()

    def of_node(self, node: str) -> list[Object]:
        """Return the trimmed maintenances that name a node, of any API group."""
        return list(self._maintenances.get(node, {}).values())

    def budgets_in(self, namespaces: Collection[str]) -> list[Budget]:
        """Return the trimmed budgets of these namespaces."""
        return [budget for namespace in namespaces for budget in self._budgets.get(namespace, {}).values()]

    async def until_ready(self, seconds: float) -> None:
        """Wait until the caches are ready. Raises `asyncio.TimeoutError` after `seconds`."""
        await asyncio.wait_for(self._is_known.wait(), seconds)

    async def shared(self, node: str, read: Callable[[], Coroutine[Any, Any, list[Object]]]) -> list[Object]:
        """Return what `read` returns for a node's pods; concurrent callers for one node share a single read.

        If a caller is cancelled, the read continues for the others.
        """
        task = self._under_way.get(node)
        if task is None:
            task = self._under_way[node] = asyncio.create_task(read())
            task.add_done_callback(lambda _: self._under_way.pop(node))
        return await asyncio.shield(task)

    async def run(self) -> None:
        """Watch until cancelled; raise the error if a watch fails permanently."""
        await asyncio.gather(self._follow_budgets(), *(self._group(group) for group in GROUPS.values()))

    async def _group(self, group: Group) -> None:
        for pause in pauses(FIRST_LOOK, LONGEST_LOOK):
            try:
                await self._follow_group(group)
            except NotFound:  # the CRD does not exist (any more), so it has no objects
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
