"""What happens while a function is at work: between what it has read and what it writes, on the real API server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from kube.door.api import Api
from kube.door.sync_client import Cluster
from kube.paths import Object


@contextmanager
def before(door: Cluster, method: str, path: str, act: Callable[[], object], *, read: str = "") -> Iterator[None]:
    """Hold the door's first request of that method to `path` back until `act` is done; all others pass.

    In a thread of its own, so that `act` may use the same door. With `read` the act waits until that path was answered:
    what is asked for side by side comes in any order.
    """
    real, waiting, answered = door.api.request, [True], asyncio.Event()

    async def request(verb: str, where: str, **more: Any) -> Object:
        if (verb, where) == (method, path) and waiting:
            waiting.clear()
            if read:
                await answered.wait()
            await asyncio.to_thread(act)
        answer = await real(verb, where, **more)
        if where == read:
            answered.set()
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(door.api, "request", request)
        yield
    assert not waiting, f"no {method} of {path} came"


@contextmanager
def requests_of(api: Api) -> Iterator[Counter[str]]:
    """How many requests go through this door meanwhile, by path."""
    counted: Counter[str] = Counter()
    real = api.request

    async def request(method: str, path: str, **more: Any) -> Object:
        counted[f"{method} {path}"] += 1
        return await real(method, path, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(api, "request", request)
        yield counted


class Asked(NamedTuple):
    """A list that was asked for: its path, its field selector, and the version that it must not be older than.

    The version is "" for the newest state, "0" for whatever the server has at hand.
    """

    path: str
    fields: str
    version: str


@contextmanager
def lists_of(api: Api) -> Iterator[list[Asked]]:
    """Which lists are asked for through this door meanwhile."""
    asked: list[Asked] = []
    real = api.request

    async def request(method: str, path: str, **more: Any) -> Object:
        query = more.get("query") or {}
        if "resourceVersion" in query or "limit" in query or "fieldSelector" in query:
            asked.append(Asked(path, query.get("fieldSelector", ""), query.get("resourceVersion", "")))
        return await real(method, path, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(api, "request", request)
        yield asked
