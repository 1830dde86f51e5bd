"""Server certificate that is loaded from a directory: after a change, the next connection uses the new certificate.

Each certificate has its own TLS context, and an open connection keeps its context. So the server needs no restart,
drops no connection, and never presents a certificate that does not match its key.
"""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from prometheus_client import Counter

CERTIFICATE_FILE, KEY_FILE = "tls.crt", "tls.key"
"""Names of the files, as in a Secret of type `kubernetes.io/tls`."""
CERTIFICATE_LOADS = Counter(
    "nodemaintenance_serving_certificate_loads",
    "Certificates that the server loaded (taken) or could not load (failed)",
    ["result"],
)
log = logging.getLogger(__name__)
FileStamp = tuple[tuple[int, int, int], ...]


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
