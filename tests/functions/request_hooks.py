"""Hooks into a client's requests: run an action between a function's read and its write, or record the requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from kube.client.api import Api
from kube.client.sync_client import Cluster
from kube.paths import Object


@contextmanager
def before(door: Cluster, method: str, path: str, act: Callable[[], object], *, read: str = "") -> Iterator[None]:
    """Hold back the first request with this method and `path` until `act` has returned; other requests pass.

    `act` runs in its own thread, so it may use the same client. If `read` is set, `act` waits until that path is
    answered,
    because concurrent requests may arrive in any order.
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
    """Yield a counter of the requests that this client sends in the block, by method and path."""
    counted: Counter[str] = Counter()
    real = api.request

    async def request(method: str, path: str, **more: Any) -> Object:
        counted[f"{method} {path}"] += 1
        return await real(method, path, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(api, "request", request)
        yield counted


class Asked(NamedTuple):
    """A list request: its path, its field selector, and the minimum resourceVersion of the response.

    The version is "" for the latest state and "0" for any version that the server has cached.
    """

    path: str
    fields: str
    version: str


@contextmanager
def lists_of(api: Api) -> Iterator[list[Asked]]:
    """Yield the list requests that this client sends in the block."""
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
