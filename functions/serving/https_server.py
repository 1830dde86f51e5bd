"""Serves an aiohttp application over HTTPS, and reloads the certificate when its files change.

After a change, new connections use the new certificate. Each certificate has its own TLS context, and an open
connection keeps its context. The server therefore needs no restart, drops no connection, and never combines a
certificate with another certificate's key.
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
"""Seconds to keep an idle connection open: longer than the API server does (90 s).

Otherwise the server might close a connection just as the API server sends a request.
"""
GRACE_SECONDS = 5.0
"""Seconds for completing in-flight requests when the server stops."""
CERTIFICATE_FILE, KEY_FILE = "tls.crt", "tls.key"
"""Names of the certificate file and the key file, as in a Secret of type `kubernetes.io/tls`."""
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
    """Serve the application in the `with` block, with `tls.crt` and `tls.key` from `directory`; yield the bound port.

    `host` is the address to listen on, None for all addresses; port 0 selects a free port. Raises `OSError` if the port
    is in use.
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
    """TLS certificate that is reloaded when its files in `directory` change; without files, every handshake fails.

    For each new connection, the server checks the files for changes with two calls of `os.stat`. Thus no timer or
    thread is necessary, and no client gets a certificate that was replaced before the connection.
    """

    def __init__(self, directory: Path) -> None:
        self._files = directory / CERTIFICATE_FILE, directory / KEY_FILE
        self._loaded_stamp: FileStamp | None = None
        self._context: ssl.SSLContext | None = None

    def build_context(self) -> ssl.SSLContext:
        """Return a TLS context for a listening socket, which presents the current certificate to each client."""
        context = _create_server_context()
        context.sni_callback = self._select_context  # The callback also runs for clients without SNI.
        return context

    def reload_if_changed(self) -> ssl.SSLContext | None:
        """Load the certificate if its files have changed; return its TLS context, or None if there is no certificate.

        If the new certificate cannot be loaded, the previous one stays in use.
        """
        stamp = self._read_stamp()
        if stamp is not None and stamp != self._loaded_stamp:
            # Store the stamp before reading the files, so that the next call detects a write during the read.
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
            context.load_cert_chain(*self._files, password="")  # Do not prompt for a key's password.
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
