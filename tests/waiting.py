"""Waits by a watch until what is on the API server is as wanted.

A quiet server takes up to a tenth of a second over a list of the newest state, and a millisecond over one object, or a
watch from a version that is known. Tests wait thousands of times; so they list where nothing is known only.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from kube.door.api import Api
from kube.door.api_errors import NotFound, Unavailable
from kube.door.list_watch import Watch, follow
from kube.door.sync_client import Cluster
from kube.paths import Object

SECONDS = 120.0
"""What is awaited comes within a second; this is for a busy machine."""
T = TypeVar("T")
Predicate = Callable[[dict[str, Object]], bool]


def between(act: Callable[[], object], wait: Callable[[], T], seconds: float) -> T:
    """What `wait` gives, `act` being done first and whenever it raises `TimeoutError`, for so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        act()
        try:
            return wait()
        except TimeoutError:
            if time.monotonic() > deadline:
                raise


async def until_set(stopping: threading.Event, *works: Coroutine[Any, Any, None]) -> None:
    """Do these works side by side, none of which ends by itself, until `stopping` is set; raises what one raised."""
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
    """A collection as it was: all its objects, and the version from which to watch it, by default theirs."""

    def __init__(self, items: Iterable[Object], version: str = "") -> None:
        self.items = {item["metadata"]["name"]: item for item in items}
        self.version = version or str(min(map(_version, self.items.values())))

    def take(self, kind: str, item: Object) -> bool:
        """Take what a watch says; tells whether that is news: it begins at the version of the oldest."""
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
    """The object at `path` once it is as `predicate` wants it (None: not there), {} if gone. Raises `TimeoutError`."""
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
    """The object at `path` by its name; nothing if it is not there, None when the server does not answer."""
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
    """The collection at `path`, as name → object, once it is as `predicate` wants it. Raises `TimeoutError`.

    With `known` only what comes after that is judged.
    """
    awaited = _Awaited(admin.api, path, predicate, fields, labels)
    try:
        admin.run(asyncio.wait_for(awaited.met(known), seconds))
    except asyncio.TimeoutError:
        raise TimeoutError(f"after {seconds} s {path} is not as awaited: {json.dumps(awaited.seen)}") from None
    return awaited.seen


class _Awaited:
    """What is waited for; `seen` is the collection as it was last."""

    def __init__(self, api: Api, path: str, predicate: Predicate, fields: str, labels: str) -> None:
        self._api, self._path, self._predicate = api, path, predicate
        self._fields, self._labels = fields, labels
        self.seen: dict[str, Object] = {}

    async def met(self, known: Known | None) -> None:
        """Return when it is so."""
        if known is None or not await self._met_after(known):
            await self._met_when_listed()

    async def _met_after(self, known: Known) -> bool:
        """Whether it came to be so; False when the watch ended, or its version is forgotten."""
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
