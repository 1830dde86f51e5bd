"""Entry point of PodSource, which a ContainerSource runs: `python -m eventing.podsource`.

PodSource emits its events to `$K_SINK`. If `$PORT` is set, PodSource serves health checks and metrics on this port
(`eventing.podsource.http_endpoints`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack

from eventing import logs
from eventing.podsource.http_endpoints import serve_http
from eventing.podsource.sender import HintSender
from eventing.podsource.task_supervisor import TaskSupervisor
from eventing.podsource.watcher import PodSource
from kube.client.api import Api


async def main() -> None:
    """Run until SIGTERM or SIGINT. An error in a task ends the process, so that the platform restarts it."""
    sink = os.environ.get("K_SINK")
    if not sink:
        raise SystemExit(
            "podsource: K_SINK is not set: run PodSource as a ContainerSource, or set K_SINK to the URL of a broker"
        )
    logs.configure()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        # The number of connections is unlimited, because each node under maintenance has a watch.
        api = await Api.connect(max_connections=0)
        stack.push_async_callback(api.close)
        tasks = await stack.enter_async_context(TaskSupervisor())
        sender = await stack.enter_async_context(HintSender(sink, tasks))
        source = PodSource(api, sender, tasks)
        if port := os.environ.get("PORT"):
            await stack.enter_async_context(serve_http(int(port), lambda: source.is_ready))
        await _run_until_stopped(source, stop)


async def _run_until_stopped(source: PodSource, stop_event: asyncio.Event) -> None:
    """Wait until the source fails, and raise its error, or until `stop_event` is set."""
    running, stopping = asyncio.create_task(source.run()), asyncio.create_task(stop_event.wait())
    done, pending = await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
