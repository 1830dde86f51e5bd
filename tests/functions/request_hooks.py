"""Hooks into an API client: run an action between a function's read and its write, or record the requests."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from kube.client.api import Api
from kube.client.sync_client import SyncClient
from kube.paths import Object

MAX_ACTION_SECONDS = 60.0


@contextmanager
def run_before_request(
    client: SyncClient, method: str, path: str, action: Callable[[], object], *, after_path: str = ""
) -> Iterator[None]:
    """Delay the first request with this method and `path` until `action` has returned.

    All other requests are sent immediately. `action` runs in its own thread, so it may use the same client. The `with`
    block ends only after `action` has returned, even if the function's deadline passes earlier. With `after_path`,
    `action` starts only after the response to a request for that path; otherwise concurrent requests have any order.
    """
    send_request, pending, responded = client.api.request, [True], asyncio.Event()
    returned = threading.Event()

    def run_action() -> None:
        try:
            action()
        finally:
            returned.set()

    async def request(request_method: str, request_path: str, **options: Any) -> Object:
        if (request_method, request_path) == (method, path) and pending:
            pending.clear()
            if after_path:
                await responded.wait()
            await asyncio.to_thread(run_action)
        response = await send_request(request_method, request_path, **options)
        if request_path == after_path:
            responded.set()
        return response

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client.api, "request", request)
        yield
    assert not pending, f"no {method} request for {path} was sent"
    assert returned.wait(MAX_ACTION_SECONDS)


@contextmanager
def count_requests(api: Api) -> Iterator[Counter[str]]:
    """Yield a counter of the requests that this client sends during the `with` block, by method and path."""
    counts: Counter[str] = Counter()
    send_request = api.request

    async def request(method: str, path: str, **options: Any) -> Object:
        counts[f"{method} {path}"] += 1
        return await send_request(method, path, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(api, "request", request)
        yield counts


class ListRequest(NamedTuple):
    """A list request: its path, its field selector, and the minimum resourceVersion of the response.

    The resourceVersion is "" for the latest state, and "0" for any state that the server has cached.
    """

    path: str
    fields: str
    version: str


@contextmanager
def record_list_requests(api: Api) -> Iterator[list[ListRequest]]:
    """Yield the list requests that this client sends during the `with` block."""
    list_requests: list[ListRequest] = []
    send_request = api.request

    async def request(method: str, path: str, **options: Any) -> Object:
        query = options.get("query") or {}
        if "resourceVersion" in query or "limit" in query or "fieldSelector" in query:
            list_requests.append(ListRequest(path, query.get("fieldSelector", ""), query.get("resourceVersion", "")))
        return await send_request(method, path, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(api, "request", request)
        yield list_requests
