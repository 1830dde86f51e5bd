"""Serves an application over HTTPS, and reloads the certificate from its directory when the files change."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from functions.serving.certificate import ReloadingCertificate

KEEPALIVE_SECONDS = 120.0
"""Seconds to keep an idle connection open, which is longer than the API server does (90 s).

Otherwise the server might close a connection just when the API server sends a request.
"""
GRACE_SECONDS = 5.0
"""Seconds for completing the requests in progress when the server stops."""
log = logging.getLogger(__name__)


@asynccontextmanager
async def serve_https(
    application: web.Application, directory: Path, port: int, host: str | None = None
) -> AsyncIterator[int]:
    """Serve the application during the block, with `tls.crt` and `tls.key` from `directory`; yield the port.

    `host` is the address to listen on, None for all; port 0 selects any free port. Raises `OSError` if the port is in
    use.
    """
    runner = web.AppRunner(
        application, access_log=None, keepalive_timeout=KEEPALIVE_SECONDS, shutdown_timeout=GRACE_SECONDS
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=ReloadingCertificate(directory).build_context()).start()
        bound_port = int(runner.addresses[0][1])
        log.info("serving HTTPS on port %s", bound_port)
        yield bound_port
    finally:
        await runner.cleanup()


async def wait_for_signal() -> None:
    """Wait for SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
