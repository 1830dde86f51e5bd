"""Entry point of PodSource, which a ContainerSource runs: `python -m eventing.podsource`.

PodSource sends its events to `$K_SINK`. If `$PORT` is set, it serves health checks and metrics on this port, at
`/healthz`, `/readyz` and `/metrics`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from eventing import logs
from eventing.podsource.sender import HintSender
from eventing.podsource.watcher import PodSource
from eventing.task_supervisor import TaskSupervisor, create_stop_event, wait_until_stopped
from kube.client.api import Api

log = logging.getLogger("podsource")


async def main() -> None:
    """Run until SIGTERM or SIGINT. An error in a task ends the process, so that Kubernetes restarts it."""
    sink = os.environ.get("K_SINK")
    if not sink:
        raise SystemExit(
            "podsource: K_SINK is not set: run PodSource as a ContainerSource, or set K_SINK to the URL of a broker"
        )
    logs.configure()
    stop_event = create_stop_event()
    async with AsyncExitStack() as stack:
        # The number of connections must be unlimited, because each node under maintenance has its own watch.
        api = await Api.connect(max_connections=0)
        stack.push_async_callback(api.close)
        tasks = TaskSupervisor()
        sender = await stack.enter_async_context(HintSender(sink, tasks))
        await stack.enter_async_context(tasks)  # entered last, so that all tasks end before the connections close
        source = PodSource(api, sender, tasks)
        if port := os.environ.get("PORT"):
            await stack.enter_async_context(serve_http(int(port), lambda: source.is_ready))
        source.start()
        await wait_until_stopped(stop_event, tasks)


@asynccontextmanager
async def serve_http(port: int, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Serve the HTTP endpoints on `port` of all addresses during the block. Raises `OSError` if the port is in use."""
    runner = web.AppRunner(build_application(is_ready), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        log.info("serving health checks and metrics on port %s", port)
        yield
    finally:
        await runner.cleanup()


def build_application(is_ready: Callable[[], bool]) -> web.Application:
    """Build the web application for health checks and metrics.

    `/healthz` only proves that the event loop runs, because a failed task ends the process.
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


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
