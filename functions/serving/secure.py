"""Serves an application over HTTPS, with a certificate from a folder that may change at any time."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from functions.serving.certificate import Certificate

KEEPALIVE_SECONDS = 120.0
"""Longer than the API server keeps a connection that it does not use (90 s), so that none ends under a request."""
GRACE_SECONDS = 5.0
"""What is under way when the server is told to end has so long to be answered."""
log = logging.getLogger(__name__)


@asynccontextmanager
async def serving(application: web.Application, folder: Path, port: int, host: str | None = None) -> AsyncIterator[int]:
    """Serve it within the block with the certificate in `folder`: `tls.crt` and `tls.key`. Out: its port.

    `host` is the address to listen at, None for all; port 0 is any that is free there. Raises `OSError` when it
    is taken.
    """
    runner = web.AppRunner(
        application, access_log=None, keepalive_timeout=KEEPALIVE_SECONDS, shutdown_timeout=GRACE_SECONDS
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=Certificate(folder).context()).start()
        chosen = int(runner.addresses[0][1])
        log.info("HTTPS at port %s", chosen)
        yield chosen
    finally:
        await runner.cleanup()


async def until_told() -> None:
    """Wait for SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
