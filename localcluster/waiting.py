"""Functions that wait, with a watch, until objects on the API server satisfy a predicate.

An idle API server takes up to a tenth of a second to list the latest state. Reading one object, or starting a watch at
a known resourceVersion, takes a millisecond. Tests wait thousands of times, so these functions list objects only if no
resourceVersion is known.
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

DEFAULT_TIMEOUT_SECONDS = 120.0
"""Default timeout of a wait, long enough for a busy machine; usually, the wait ends within a second."""
T = TypeVar("T")
Predicate = Callable[[dict[str, Object]], bool]


def retry_action(action: Callable[[], object], wait: Callable[[], T], seconds: float) -> T:
    """Call `action`, then `wait`; repeat both while `wait` raises `TimeoutError`, and return the result of `wait`.

    After `seconds`, the next `TimeoutError` is raised.
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
    """Run endless coroutines concurrently until `stop_event` is set. If one of them fails, raise its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    while not (stop_event.is_set() or any(task.done() for task in tasks)):
        await asyncio.sleep(0.05)
    ended_tasks = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended_tasks:
        task.result()


class KnownState:
    """The known state of a collection: its objects, and the resourceVersion from which to watch.

    `version` defaults to the lowest resourceVersion of the objects.
    """

    def __init__(self, objects: Iterable[Object], version: str = "") -> None:
        self.objects = {obj["metadata"]["name"]: obj for obj in objects}
        self.version = version or str(min(map(_get_resource_version, self.objects.values())))

    def apply_event(self, event_type: str, obj: Object) -> bool:
        """Apply a watch event; return whether the event is newer than the known state.

        The watch starts at the oldest object's resourceVersion, so it repeats events that are already known.
        """
        if event_type == "BOOKMARK":
            return False
        name = obj["metadata"]["name"]
        if event_type == "DELETED":
            return self.objects.pop(name, None) is not None
        known_object = self.objects.get(name)
        if known_object is not None and _get_resource_version(obj) <= _get_resource_version(known_object):
            return False
        self.objects[name] = obj
        return True


def _get_resource_version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


def wait_for_object(
    client: SyncClient,
    path: str,
    predicate: Callable[[Object | None], bool],
    seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> Object:
    """Wait until the object at `path` satisfies `predicate`; return the object, or {} if it does not exist.

    If the object does not exist, the predicate is called with None. Raises `TimeoutError` after `seconds`.
    """
    collection, _, name = path.rpartition("/")
    current = _read_current_object(client, path)
    if current is not None and predicate(current.get(name)):
        return current.get(name, {})
    objects_by_name = wait_for_collection(
        client,
        collection,
        lambda objects: predicate(objects.get(name)),
        seconds,
        fields=f"metadata.name={name}",
        known_state=KnownState(current.values()) if current else None,
    )
    return objects_by_name.get(name, {})


def _read_current_object(client: SyncClient, path: str) -> dict[str, Object] | None:
    """Return the object at `path` by its name, {} if it does not exist, or None if the API server is unavailable."""
    try:
        obj = client.get(path)
    except NotFound:
        return {}
    except Unavailable:
        return None
    return {obj["metadata"]["name"]: obj}


def wait_for_collection(
    client: SyncClient,
    path: str,
    predicate: Predicate,
    seconds: float = DEFAULT_TIMEOUT_SECONDS,
    *,
    fields: str = "",
    labels: str = "",
    known_state: KnownState | None = None,
) -> dict[str, Object]:
    """Wait until `predicate` is true for the collection at `path`; return the collection's objects by name.

    The predicate is called with the objects by name. If `known_state` is given, only later changes are checked. Raises
    `TimeoutError` after `seconds`.
    """
    collection_wait = _CollectionWait(client.api, path, predicate, fields, labels)
    try:
        client.run(asyncio.wait_for(collection_wait.wait(known_state), seconds))
    except asyncio.TimeoutError:
        raise TimeoutError(f"no match at {path} in {seconds} s: {json.dumps(collection_wait.state)}") from None
    return collection_wait.state


class _CollectionWait:
    """One wait for a collection; `state` contains the collection's latest objects by name."""

    def __init__(self, api: Api, path: str, predicate: Predicate, fields: str, labels: str) -> None:
        self._api, self._path, self._predicate = api, path, predicate
        self._fields, self._labels = fields, labels
        self.state: dict[str, Object] = {}

    async def wait(self, known_state: KnownState | None) -> None:
        """Wait until the collection satisfies the predicate."""
        if known_state is None or not await self._wait_with_watch(known_state):
            await self._wait_with_list()

    async def _wait_with_watch(self, known_state: KnownState) -> bool:
        """Watch from the known resourceVersion until the predicate is true; return False if the watch ends earlier.

        A watch ends early, for example, if its resourceVersion has expired.
        """
        self.state = known_state.objects
        watch = self._api.watch(
            self._path, resource_version=known_state.version, field_selector=self._fields, label_selector=self._labels
        )
        try:
            async with aclosing(cast("WatchStream", watch)) as changes:
                async for event_type, obj in changes:
                    if known_state.apply_event(event_type, obj) and self._predicate(self.state):
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
