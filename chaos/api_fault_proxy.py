"""A proxy for a real API server that simulates network faults, 429 responses, and webhooks' rejections."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

T = TypeVar("T")
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
FORWARDED_HEADERS = ("Authorization", "Content-Type", "Accept", "User-Agent")


class Fault(NamedTuple):
    """A response that replaces the API server's response.

    Special values of `status`: 0 sends no response, -1 resets the connection, and -2 delays the real response.
    """

    status: int
    message: str = ""
    retry_after: int = 0
    body: dict[str, Any] | None = None


NO_RESPONSE, CONNECTION_RESET, DELAYED = Fault(0), Fault(-1), Fault(-2)


class FaultProxy:
    """An HTTP proxy for the API server; `rule` returns a request's fault, or None to forward the request."""

    def __init__(self, server: str, certificate: str) -> None:
        self._server, self._tls = server, ssl.create_default_context(cadata=certificate)
        self.rule: Callable[[str], Fault | None] = lambda _request: None
        self.request_counts: Counter[str] = Counter()
        self._released = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner, self.url = self._run_coroutine(self._start_proxy())

    def close(self) -> None:
        """Stop injecting faults, and stop the proxy."""
        self.stop_faults()
        self._run_coroutine(self._stop_proxy())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def inject(self, rule: Callable[[str], Fault | None]) -> None:
        """Choose the faults of all later requests with `rule`.

        The argument of `rule` is "VERB RESOURCE N", where N counts the requests with this verb and resource.
        """
        self.request_counts.clear()
        self.rule = rule

    @contextmanager
    def delay_request(self, delayed_request: str, seconds: float) -> Iterator[None]:
        """Delay `delayed_request` by `seconds` during the `with` block; forward all other requests immediately."""
        timer = threading.Timer(seconds, self.stop_faults)

        def choose_fault(request: str) -> Fault | None:
            if request != delayed_request:
                return None
            timer.start()
            return DELAYED

        self.inject(choose_fault)
        yield
        timer.join()

    def stop_faults(self) -> None:
        """Stop injecting faults: reset connections that wait for a response, and forward delayed requests."""
        self.inject(lambda _request: None)
        self._loop.call_soon_threadsafe(self._release_delayed)

    def _release_delayed(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start_proxy(self) -> tuple[web.AppRunner, str]:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls, limit=0))
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle_request)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _stop_proxy(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        request_name = describe_request(request.method, request.path)
        self.request_counts[request_name] += 1
        fault = self.rule(f"{request_name} {self.request_counts[request_name]}")
        if fault is DELAYED:
            await self._released.wait()
            fault = None
        if fault is None:
            try:
                return await self._forward_request(request)
            except aiohttp.ClientError:  # The API server is not running, or was stopped before it responded.
                fault = CONNECTION_RESET
        if fault.status <= 0:
            if fault is NO_RESPONSE:
                await self._released.wait()
            if request.transport is not None:  # None means that the client has disconnected.
                request.transport.abort()
            return web.Response(status=502)
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": fault.message,
            **(fault.body or {}),
        }
        return web.Response(
            status=fault.status, text=json.dumps(body), content_type="application/json", headers=headers
        )

    async def _forward_request(self, request: web.Request) -> web.Response:
        headers = {key: request.headers[key] for key in FORWARDED_HEADERS if key in request.headers}
        url, body = URL(f"{self._server}{request.raw_path}", encoded=True), await request.read()
        async with self._session.request(request.method, url, data=body, headers=headers) as response:
            return web.Response(status=response.status, body=await response.read(), content_type="application/json")


def describe_request(method: str, path: str) -> str:
    """Return a request's verb and resource, such as "get nodes", or "create pods/eviction" for a subresource."""
    segments = path.split("/")[3 if path.startswith("/api/") else 4 :] or [path]
    if segments[0] == "namespaces" and len(segments) > 2:
        segments = segments[2:]
    verb = VERBS.get(method) or ("get" if len(segments) > 1 else "list")
    return f"{verb} {segments[0]}" + (f"/{segments[2]}" if len(segments) > 2 else "")
