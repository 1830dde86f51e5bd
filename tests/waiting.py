"""Waits with a watch until the objects on the API server satisfy a predicate.

An idle API server takes up to a tenth of a second to list the latest state. Reading one object, or starting a watch at
a known version, takes a millisecond. Tests wait thousands of times, so they list only if no version is known.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from kube.client.api import Api
from kube.client.api_errors import NotFound, Unavailable
from kube.client.list_watch import WatchStream, follow
from kube.client.sync_client import SyncClient
from kube.paths import Object

SECONDS = 120.0
"""Default timeout; the state usually arrives within a second, so this allows for a busy machine."""
T = TypeVar("T")
Predicate = Callable[[dict[str, Object]], bool]


def retry_action(action: Callable[[], object], wait: Callable[[], T], seconds: float) -> T:
    """Call `action`, then `wait`, and repeat both while `wait` raises `TimeoutError`; return the result of `wait`.

    Raises the last `TimeoutError` after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        action()
        try:
            return wait()
        except TimeoutError:
            if time.monotonic() > deadline:
                raise


async def run_until_set(stop_event: threading.Event, *coroutines: Coroutine[Any, Any, None]) -> None:
    """Run endless coroutines concurrently until `stop_event` is set, or until one of them raises; raise that error."""
    tasks = [asyncio.ensure_future(work) for work in coroutines]
    while not (stop_event.is_set() or any(task.done() for task in tasks)):
        await asyncio.sleep(0.05)
    ended_tasks = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended_tasks:
        task.result()


class KnownState:
    """A known state of a collection: its objects, and the resourceVersion at which a watch starts.

    The default version is the oldest one of the objects.
    """

    def __init__(self, items: Iterable[Object], version: str = "") -> None:
        self.items = {item["metadata"]["name"]: item for item in items}
        self.version = version or str(min(map(_get_version, self.items.values())))

    def apply_event(self, kind: str, item: Object) -> bool:
        """Apply a watch event; return whether it is newer than the known state.

        The watch starts at the version of the oldest object, so it repeats events that are already known.
        """
        if kind == "BOOKMARK":
            return False
        name = item["metadata"]["name"]
        if kind == "DELETED":
            return self.items.pop(name, None) is not None
        old = self.items.get(name)
        if old is not None and _get_version(item) <= _get_version(old):
            return False
        self.items[name] = item
        return True


def _get_version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


def wait_for_object(
    client: SyncClient, path: str, predicate: Callable[[Object | None], bool], seconds: float = SECONDS
) -> Object:
    """Wait until the object at `path` satisfies `predicate`; return it, or {} if it does not exist.

    The predicate gets None for an object that does not exist. Raises `TimeoutError`.
    """
    collection, _, name = path.rpartition("/")
    current = _read_current(client, path)
    if current is not None and predicate(current.get(name)):
        return current.get(name, {})
    items_by_name = wait_for_collection(
        client,
        collection,
        lambda items: predicate(items.get(name)),
        seconds,
        fields=f"metadata.name={name}",
        known=KnownState(current.values()) if current else None,
    )
    return items_by_name.get(name, {})


def _read_current(client: SyncClient, path: str) -> dict[str, Object] | None:
    """Return the object at `path` by its name, {} if it does not exist, or None if the server is unavailable."""
    try:
        item = client.get(path)
    except NotFound:
        return {}
    except Unavailable:
        return None
    return {item["metadata"]["name"]: item}


def wait_for_collection(
    client: SyncClient,
    path: str,
    predicate: Predicate,
    seconds: float = SECONDS,
    *,
    fields: str = "",
    labels: str = "",
    known: KnownState | None = None,
) -> dict[str, Object]:
    """Wait until the collection at `path`, as name → object, satisfies `predicate`; return it.

    With `known`, only later changes are checked. Raises `TimeoutError`.
    """
    collection_wait = _CollectionWait(client.api, path, predicate, fields, labels)
    try:
        client.run(asyncio.wait_for(collection_wait.wait(known), seconds))
    except asyncio.TimeoutError:
        raise TimeoutError(f"no match at {path} in {seconds} s: {json.dumps(collection_wait.state)}") from None
    return collection_wait.state


class _CollectionWait:
    """The collection that a test waits for; `state` is its last known state."""

    def __init__(self, api: Api, path: str, predicate: Predicate, fields: str, labels: str) -> None:
        self._api, self._path, self._predicate = api, path, predicate
        self._fields, self._labels = fields, labels
        self.state: dict[str, Object] = {}

    async def wait(self, known: KnownState | None) -> None:
        """Return when the collection satisfies the predicate."""
        if known is None or not await self._wait_after(known):
            await self._wait_with_list()

    async def _wait_after(self, known: KnownState) -> bool:
        """Return whether a watch from the known version satisfied the predicate.

        Return False if the watch ended or its version has expired.
        """
        self.state = known.items
        watch = self._api.watch(
            self._path, resource_version=known.version, field_selector=self._fields, label_selector=self._labels
        )
        try:
            async with aclosing(cast("WatchStream", watch)) as changes:
                async for kind, item in changes:
                    if known.apply_event(kind, item) and self._predicate(self.state):
                        return True
        except (NotFound, Unavailable):
            pass
        return False

    async def _wait_with_list(self) -> None:
        synced, self.state = False, {}
        following = follow(self._api, self._path, field_selector=self._fields, label_selector=self._labels)
        async with aclosing(following) as changes:
            async for change in changes:
                if change.change_type == "SYNCED":
                    synced = True
                elif change.change_type == "DELETED":
                    self.state.pop(change.object["metadata"]["name"], None)
                else:
                    self.state[change.object["metadata"]["name"]] = change.object
                if synced and self._predicate(self.state):
                    return
