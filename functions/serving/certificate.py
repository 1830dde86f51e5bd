"""A server's certificate in a folder: after a change, the next connection uses the new one.

Each certificate has its own TLS context, and open connections keep theirs. So no restart is needed, no connection is
dropped, and no client gets a certificate that does not match its key.
"""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from prometheus_client import Counter

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""Names of the files, as in a Secret of type `kubernetes.io/tls`."""
LOADED = Counter("nodemaintenance_serving_certificate_loads", "Times that a server took a certificate", ["result"])
log = logging.getLogger(__name__)
Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """The certificate in `folder`; as long as it does not exist, every handshake fails.

    The folder is checked at the start of each connection, which costs two calls of `stat`. This needs no timer and no
    thread, and no client gets a certificate that was replaced before it connected.
    """

    def __init__(self, folder: Path) -> None:
        self._files = folder / CERTIFICATE, folder / KEY
        self._seen: Stamp | None = None
        self._current: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context for a listening socket, which presents the current certificate to each client."""
        listening = _server_context()
        listening.sni_callback = self._choose  # also called for clients without SNI
        return listening

    def current(self) -> ssl.SSLContext | None:
        """Return the TLS context of the current certificate, or None if there is none.

        If a new certificate cannot be used, the previous one stays in use.
        """
        seen = self._stamp()
        if seen is not None and seen != self._seen:
            self._seen = seen  # set before the files are read, so that a write in between is noticed next time
            self._load()
        return self._current

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        context = self.current()
        if context is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = context
        return None

    def _stamp(self) -> Stamp | None:
        try:
            found = [os.stat(file) for file in self._files]
        except FileNotFoundError:
            return None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)

    def _load(self) -> None:
        context = _server_context()
        try:
            context.load_cert_chain(*self._files, password="")  # an encrypted key fails instead of prompting
        except OSError as error:  # includes ssl.SSLError
            LOADED.labels("failed").inc()
            log.error("the certificate in %s cannot be used: %s", self._files[0].parent, error)
            if not isinstance(error, ssl.SSLError):
                self._seen = None  # transient, for example too many open files: the next connection retries
            return
        LOADED.labels("taken").inc()
        log.info("took the certificate in %s", self._files[0].parent)
        self._current = context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
