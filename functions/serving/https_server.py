"""Serves an application over HTTPS, and reloads the certificate from its directory when the files change.

After a change, the next connection uses the new certificate. Each certificate has its own TLS context, and an open
connection keeps its context. So the server needs no restart, drops no connection, and never presents a certificate that
does not match its key.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from prometheus_client import Counter

KEEPALIVE_SECONDS = 120.0
"""Seconds to keep an idle connection open, which is longer than the API server does (90 s).

Otherwise the server might close a connection just when the API server sends a request.
"""
GRACE_SECONDS = 5.0
"""Seconds for completing the requests in progress when the server stops."""
CERTIFICATE_FILE, KEY_FILE = "tls.crt", "tls.key"
"""Names of the files, as in a Secret of type `kubernetes.io/tls`."""
CERTIFICATE_LOADS = Counter(
    "nodemaintenance_serving_certificate_loads",
    "Certificates that the server loaded (taken) or could not load (failed)",
    ["result"],
)
log = logging.getLogger(__name__)
FileStamp = tuple[tuple[int, int, int], ...]


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


class ReloadingCertificate:
    """The certificate in `directory`; every handshake fails while the directory contains no certificate.

    Each new connection checks the files for changes, which takes two calls of `stat`. This check needs no timer or
    thread, and no client gets a certificate that was replaced before the client connected.
    """

    def __init__(self, directory: Path) -> None:
        self._files = directory / CERTIFICATE_FILE, directory / KEY_FILE
        self._loaded_stamp: FileStamp | None = None
        self._context: ssl.SSLContext | None = None

    def build_context(self) -> ssl.SSLContext:
        """Return a context for a listening socket, which presents the current certificate to each client."""
        context = _create_server_context()
        context.sni_callback = self._select_context  # The callback also runs for clients without SNI.
        return context

    def reload_if_changed(self) -> ssl.SSLContext | None:
        """Load the certificate if its files have changed; return its TLS context, or None if there is no certificate.

        If a new certificate cannot be used, the previous one stays in use.
        """
        stamp = self._read_stamp()
        if stamp is not None and stamp != self._loaded_stamp:
            # The stamp is stored before the files are read, so that the next call notices a write in between.
            self._loaded_stamp = stamp
            self._load_context()
        return self._context

    def _select_context(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        context = self.reload_if_changed()
        if context is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = context
        return None

    def _read_stamp(self) -> FileStamp | None:
        try:
            file_stats = [os.stat(file) for file in self._files]
        except FileNotFoundError:
            return None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in file_stats)

    def _load_context(self) -> None:
        context = _create_server_context()
        try:
            context.load_cert_chain(*self._files, password="")  # An encrypted key fails instead of prompting.
        except OSError as error:  # OSError includes ssl.SSLError.
            CERTIFICATE_LOADS.labels("failed").inc()
            log.error("cannot load the certificate in %s: %s", self._files[0].parent, error)
            if not isinstance(error, ssl.SSLError):
                self._loaded_stamp = None  # The error may be transient, so the next connection retries.
            return
        CERTIFICATE_LOADS.labels("taken").inc()
        log.info("loaded the certificate in %s", self._files[0].parent)
        self._context = context


def _create_server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
