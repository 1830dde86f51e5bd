"""The webhook's watch caches: NodeMaintenance objects by node, and budgets by namespace.

The webhook watches both kinds, so a review does not list them, however many exist. It does not watch nodes and pods, so
heartbeats and starting pods cause no load. Each review reads only its own node and the pods on it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from contextlib import aclosing
from typing import Any

from kube.backoff import generate_delays
from kube.budgets import BUDGETS_PATH, Budget
from kube.client.api import Api
from kube.client.api_errors import ApiError, NotFound
from kube.client.list_watch import StreamObserver, follow
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.maintenance.objects import get_node_name, trim_maintenance
from kube.paths import Object
from kube.trimming import trim_budget

MIN_CRD_RETRY_SECONDS, MAX_CRD_RETRY_SECONDS = 2.0, 60.0
"""Minimum and maximum seconds between checks for the CRD of a missing API group; the interval doubles.

Until the webhook finds a new CRD, it does not reject invalid objects of that group; `begin` fails on them instead.
"""

MAX_CONCURRENT_POD_LISTS = 4
"""Maximum number of concurrent requests that list pods.

Decoding the pods of a full node takes ten milliseconds of CPU time, during which other reviews wait.
"""


class RetryingObserver(StreamObserver):
    """Observer with which a watch retries a rejected request; the watch logs the reason of the rejection."""

    def on_failed(self, error: ApiError) -> None:
        """Ignore the error, so that the watch sends its request again."""


class WatchCache:
    """Caches of maintenances and budgets, kept up to date by watches; `run` must be running while they are used.

    Attributes:
        pod_list_semaphore: Semaphore to hold while listing the pods on a node.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._maintenances: dict[str, dict[str, Object]] = defaultdict(dict)
        self._budgets: dict[str, dict[str, Object]] = defaultdict(dict)
        self._unsynced = {BUDGETS_PATH, *(group.path for group in GROUPS.values())}
        self._synced = asyncio.Event()
        self.pod_list_semaphore = asyncio.Semaphore(MAX_CONCURRENT_POD_LISTS)
        self._in_flight: dict[str, asyncio.Task[list[Object]]] = {}

    @property
    def is_ready(self) -> bool:
        """Return whether all objects that existed at the start have been received."""
        return self._synced.is_set()

    def list_maintenances(self, node: str) -> list[Object]:
        """Return the trimmed maintenances of all API groups that name `node`."""
        return list(self._maintenances.get(node, {}).values())

    def list_budgets(self, namespaces: Collection[str]) -> list[Budget]:
        """Return the trimmed budgets in `namespaces`."""
        return [budget for namespace in namespaces for budget in self._budgets.get(namespace, {}).values()]

    async def wait_until_ready(self, timeout_seconds: float) -> None:
        """Wait until the caches are ready. Raises `asyncio.TimeoutError` after `timeout_seconds`."""
        await asyncio.wait_for(self._synced.wait(), timeout_seconds)

    async def share_pod_list(
        self, node: str, list_pods: Callable[[], Coroutine[Any, Any, list[Object]]]
    ) -> list[Object]:
        """Return the pods on a node from `list_pods`; concurrent callers for the same node share one call.

        If one caller is cancelled, the call continues for the other callers.
        """
        task = self._in_flight.get(node)
        if task is None:
            task = self._in_flight[node] = asyncio.create_task(list_pods())
            task.add_done_callback(lambda _: self._in_flight.pop(node))
        return await asyncio.shield(task)

    async def run(self) -> None:
        """Watch until cancelled; raise the error if a watch fails permanently."""
        await asyncio.gather(self._follow_budgets(), *(self._watch_group(group) for group in GROUPS.values()))

    async def _watch_group(self, group: ApiGroup) -> None:
        for delay in generate_delays(MIN_CRD_RETRY_SECONDS, MAX_CRD_RETRY_SECONDS):
            try:
                await self._follow_group(group)
            except NotFound:  # Without a CRD, the group has no objects.
                self._drop_group_objects(group)
                self._mark_synced(group.path)
            await asyncio.sleep(delay)

    async def _follow_group(self, group: ApiGroup) -> None:
        async with aclosing(
            follow(self._api, group.path, transform=trim_maintenance, observer=RetryingObserver())
        ) as changes:
            async for change in changes:
                if change.change_type == "SYNCED":
                    self._mark_synced(group.path)
                    continue
                item = {**change.object, "apiVersion": group.api_version}
                _update_index(self._maintenances, get_node_name(item), item, deleted=change.change_type == "DELETED")

    async def _follow_budgets(self) -> None:
        async with aclosing(
            follow(self._api, BUDGETS_PATH, transform=trim_budget, observer=RetryingObserver())
        ) as changes:
            async for change in changes:
                if change.change_type == "SYNCED":
                    self._mark_synced(BUDGETS_PATH)
                    continue
                namespace = change.object["metadata"]["namespace"]
                _update_index(self._budgets, namespace, change.object, deleted=change.change_type == "DELETED")

    def _mark_synced(self, path: str) -> None:
        self._unsynced.discard(path)
        if not self._unsynced:
            self._synced.set()

    def _drop_group_objects(self, group: ApiGroup) -> None:
        items = [item for items_by_uid in self._maintenances.values() for item in items_by_uid.values()]
        for item in items:
            if item["apiVersion"] == group.api_version:
                _update_index(self._maintenances, get_node_name(item), item, deleted=True)


def _update_index(index: dict[str, dict[str, Object]], key: str, obj: Object, *, deleted: bool) -> None:
    uid = obj["metadata"]["uid"]
    if not deleted:
        index[key][uid] = obj
        return
    index[key].pop(uid, None)
    if not index[key]:
        del index[key]
