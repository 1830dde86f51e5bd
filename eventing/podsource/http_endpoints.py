"""PodSource's HTTP endpoints for health checks and metrics: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

log = logging.getLogger("podsource")


def build_application(is_ready: Callable[[], bool]) -> web.Application:
    """Build the web application.

    `/healthz` only shows that the event loop runs, because a failed task ends the process.
    """

    async def handle_healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def handle_readyz(_: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text="ok")
        return web.Response(status=503, text="the NodeMaintenance watches are not synced yet")

    async def handle_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    for path, handler in (("/healthz", handle_healthz), ("/readyz", handle_readyz), ("/metrics", handle_metrics)):
        application.router.add_get(path, handler)
    return application


@asynccontextmanager
async def serve_http(port: int, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Serve the endpoints on `port` of all addresses during the block. Raises `OSError` if the port is in use."""
    runner = web.AppRunner(build_application(is_ready), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        log.info("serving health checks and metrics on port %s", port)
        yield
    finally:
        await runner.cleanup()
