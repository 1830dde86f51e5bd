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
from kube.client.list_watch import Watch, follow
from kube.client.sync_client import Cluster
from kube.paths import Object

SECONDS = 120.0
"""Default timeout; the state usually arrives within a second, so this allows for a busy machine."""
T = TypeVar("T")
Predicate = Callable[[dict[str, Object]], bool]


def between(act: Callable[[], object], wait: Callable[[], T], seconds: float) -> T:
    """Call `act`, then `wait`, and repeat both while `wait` raises `TimeoutError`; return the result of `wait`.

    Raises the last `TimeoutError` after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        act()
        try:
            return wait()
        except TimeoutError:
            if time.monotonic() > deadline:
                raise


async def until_set(stopping: threading.Event, *works: Coroutine[Any, Any, None]) -> None:
    """Run endless coroutines concurrently until `stopping` is set, or until one of them raises; raise that error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    while not (stopping.is_set() or any(task.done() for task in tasks)):
        await asyncio.sleep(0.05)
    ended = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


class Known:
    """A known state of a collection: its objects, and the resourceVersion at which a watch starts.

    The default version is the oldest one of the objects.
    """

    def __init__(self, items: Iterable[Object], version: str = "") -> None:
        self.items = {item["metadata"]["name"]: item for item in items}
        self.version = version or str(min(map(_version, self.items.values())))

    def take(self, kind: str, item: Object) -> bool:
        """Apply a watch event; return whether it is newer than the known state.

        The watch starts at the version of the oldest object, so it repeats events that are already known.
        """
        if kind == "BOOKMARK":
            return False
        name = item["metadata"]["name"]
        if kind == "DELETED":
            return self.items.pop(name, None) is not None
        old = self.items.get(name)
        if old is not None and _version(item) <= _version(old):
            return False
        self.items[name] = item
        return True


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


def wait_for(admin: Cluster, path: str, predicate: Callable[[Object | None], bool], seconds: float = SECONDS) -> Object:
    """Wait until the object at `path` satisfies `predicate`; return it, or {} if it does not exist.

    The predicate gets None for an object that does not exist. Raises `TimeoutError`.
    """
    collection, _, name = path.rpartition("/")
    there = _there_now(admin, path)
    if there is not None and predicate(there.get(name)):
        return there.get(name, {})
    met = until(
        admin,
        collection,
        lambda items: predicate(items.get(name)),
        seconds,
        fields=f"metadata.name={name}",
        known=Known(there.values()) if there else None,
    )
    return met.get(name, {})


def _there_now(admin: Cluster, path: str) -> dict[str, Object] | None:
    """Return the object at `path` by its name, {} if it does not exist, or None if the server is unavailable."""
    try:
        item = admin.get(path)
    except NotFound:
        return {}
    except Unavailable:
        return None
    return {item["metadata"]["name"]: item}


def until(
    admin: Cluster,
    path: str,
    predicate: Predicate,
    seconds: float = SECONDS,
    *,
    fields: str = "",
    labels: str = "",
    known: Known | None = None,
) -> dict[str, Object]:
    """Wait until the collection at `path`, as name → object, satisfies `predicate`; return it.

    With `known`, only later changes are checked. Raises `TimeoutError`.
    """
    awaited = _Awaited(admin.api, path, predicate, fields, labels)
    try:
        admin.run(asyncio.wait_for(awaited.met(known), seconds))
    except asyncio.TimeoutError:
        raise TimeoutError(f"after {seconds} s {path} is not as awaited: {json.dumps(awaited.seen)}") from None
    return awaited.seen


class _Awaited:
    """The collection that a test waits for; `seen` is its last known state."""

    def __init__(self, api: Api, path: str, predicate: Predicate, fields: str, labels: str) -> None:
        self._api, self._path, self._predicate = api, path, predicate
        self._fields, self._labels = fields, labels
        self.seen: dict[str, Object] = {}

    async def met(self, known: Known | None) -> None:
        """Return when the collection satisfies the predicate."""
        if known is None or not await self._met_after(known):
            await self._met_when_listed()

    async def _met_after(self, known: Known) -> bool:
        """Return whether a watch from the known version satisfied the predicate.

        Return False if the watch ended or its version has expired.
        """
        self.seen = known.items
        watch = self._api.watch(self._path, version=known.version, fields=self._fields, labels=self._labels)
        try:
            async with aclosing(cast("Watch", watch)) as changes:
                async for kind, item in changes:
                    if known.take(kind, item) and self._predicate(self.seen):
                        return True
        except (NotFound, Unavailable):
            pass
        return False

    async def _met_when_listed(self) -> None:
        synced, self.seen = False, {}
        following = follow(self._api, self._path, fields=self._fields, labels=self._labels)
        async with aclosing(following) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    synced = True
                elif change.kind == "DELETED":
                    self.seen.pop(change.object["metadata"]["name"], None)
                else:
                    self.seen[change.object["metadata"]["name"]] = change.object
                if synced and self._predicate(self.seen):
                    return
