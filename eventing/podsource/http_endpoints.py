"""PodSource's HTTP endpoints for operators: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

log = logging.getLogger("podsource")


def pages(ready: Callable[[], bool]) -> web.Application:
    """Build the web application.

    `/healthz` only shows that the event loop runs: a failed task ends the process.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        if ready():
            return web.Response(text="ok")
        return web.Response(status=503, text="the NodeMaintenance objects are not known yet")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    for path, page in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", metrics)):
        application.router.add_get(path, page)
    return application


@asynccontextmanager
async def serving(port: int, ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Serve the endpoints at `port` of all addresses during the block. Raises `OSError` if the port is in use."""
    runner = web.AppRunner(pages(ready), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        log.info("health and metrics at port %s", port)
        yield
    finally:
        await runner.cleanup()
