"""The webhook's watch caches: NodeMaintenance objects by node, and PodDisruptionBudgets by namespace.

The webhook watches both kinds, so a review sends no list request for them. It does not watch nodes and pods, because
their frequent updates, such as heartbeats, would cause load. Each review reads the node and the node's pods instead.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import aclosing

from kube.backoff import generate_delays
from kube.budgets import BUDGETS_PATH, Budget
from kube.client.api import Api
from kube.client.api_errors import ApiError, NotFound
from kube.client.list_watch import StreamObserver, follow
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.maintenance.objects import get_node_name, trim_maintenance
from kube.paths import Object, build_pods_on_node_query
from kube.trimming import trim_budget

MIN_CRD_RETRY_SECONDS, MAX_CRD_RETRY_SECONDS = 2.0, 60.0
"""Minimum and maximum seconds between two checks for a missing NodeMaintenance CRD; the interval doubles each time.

Until the webhook finds the CRD, it does not know the NodeMaintenances of that API group, so it cannot reject a conflict
with them. In this case, the step `begin` rejects the new maintenance.
"""

MAX_CONCURRENT_POD_LISTS = 4
"""Maximum number of concurrent list requests for pods.

Decoding the pod list of a full node blocks the event loop, and thus all other reviews, for ten milliseconds.
"""


Index = defaultdict[str, dict[str, Object]]
"""Map from a node name or a namespace to its objects by uid."""


class RetryingObserver(StreamObserver):
    """Stream observer that lets the watch retry a rejected request; the watch itself logs the error."""

    def on_failed(self, error: ApiError) -> None:
        """Ignore the error, so that the watch retries its request."""


class WatchCache:
    """Caches of NodeMaintenances and PodDisruptionBudgets; the watches in `run` keep them up to date."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._maintenances: Index = defaultdict(dict)
        self._budgets: Index = defaultdict(dict)
        self._unsynced = {BUDGETS_PATH, *(group.path for group in GROUPS.values())}
        self._synced = asyncio.Event()
        self._pod_list_semaphore = asyncio.Semaphore(MAX_CONCURRENT_POD_LISTS)
        self._pod_lists: dict[str, asyncio.Task[list[Object]]] = {}

    @property
    def is_ready(self) -> bool:
        """Return whether all caches have received their initial lists."""
        return self._synced.is_set()

    def list_maintenances(self, node: str) -> list[Object]:
        """Return the cached maintenances of all API groups whose `spec.nodeName` is `node`."""
        return list(self._maintenances.get(node, {}).values())

    def list_budgets(self, namespaces: Collection[str]) -> list[Budget]:
        """Return the cached PodDisruptionBudgets in `namespaces`."""
        return [budget for namespace in namespaces for budget in self._budgets.get(namespace, {}).values()]

    async def wait_until_ready(self, timeout_seconds: float) -> None:
        """Wait until the caches are ready. Raises `asyncio.TimeoutError` after `timeout_seconds`."""
        await asyncio.wait_for(self._synced.wait(), timeout_seconds)

    async def list_pods(self, node: str) -> list[Object]:
        """Return the pods on a node from the API server's cache; concurrent reviews of a node share one list request.

        If one review is cancelled, the request continues for the other reviews.
        """
        task = self._pod_lists.get(node)
        if task is None:
            task = self._pod_lists[node] = asyncio.create_task(self._request_pods(node))
            task.add_done_callback(lambda _: self._pod_lists.pop(node))
        return await asyncio.shield(task)

    async def _request_pods(self, node: str) -> list[Object]:
        path, fields = build_pods_on_node_query(node)
        async with self._pod_list_semaphore:
            items: list[Object] = (await self._api.list(path, field_selector=fields, resource_version="0"))["items"]
        return items

    async def run(self) -> None:
        """Run all watches until cancelled. Raises the error of a watch that fails permanently."""
        budgets = self._follow(
            BUDGETS_PATH, trim_budget, self._budgets, lambda item: str(item["metadata"]["namespace"])
        )
        await asyncio.gather(budgets, *map(self._watch_group, GROUPS.values()))

    async def _watch_group(self, group: ApiGroup) -> None:
        def trim(item: Object) -> Object:
            return {**trim_maintenance(item), "apiVersion": group.api_version}

        for delay in generate_delays(MIN_CRD_RETRY_SECONDS, MAX_CRD_RETRY_SECONDS):
            try:
                await self._follow(group.path, trim, self._maintenances, get_node_name)
            except NotFound:  # Without a CRD, the group has no objects.
                self._drop_group_objects(group)
                self._mark_synced(group.path)
            await asyncio.sleep(delay)

    async def _follow(
        self, path: str, transform: Callable[[Object], Object], index: Index, get_key: Callable[[Object], str]
    ) -> None:
        """Watch the objects at `path`, and apply each change to `index`."""
        async with aclosing(follow(self._api, path, transform=transform, observer=RetryingObserver())) as changes:
            async for change in changes:
                if change.change_type == "SYNCED":
                    self._mark_synced(path)
                else:
                    is_deleted = change.change_type == "DELETED"
                    _update_index(index, get_key(change.object), change.object, deleted=is_deleted)

    def _mark_synced(self, path: str) -> None:
        self._unsynced.discard(path)
        if not self._unsynced:
            self._synced.set()

    def _drop_group_objects(self, group: ApiGroup) -> None:
        items = [item for items_by_uid in self._maintenances.values() for item in items_by_uid.values()]
        for item in items:
            if item["apiVersion"] == group.api_version:
                _update_index(self._maintenances, get_node_name(item), item, deleted=True)


def _update_index(index: Index, key: str, obj: Object, *, deleted: bool) -> None:
    uid = obj["metadata"]["uid"]
    if not deleted:
        index[key][uid] = obj
        return
    index[key].pop(uid, None)
    if not index[key]:
        del index[key]
