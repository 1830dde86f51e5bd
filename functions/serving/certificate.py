"""A server's certificate, read from a folder: changed there, it is the one of the next connection.

Each certificate has a TLS context of its own, and those of open connections stay as they are. So nothing is restarted,
no connection is dropped, and a certificate and a key that do not belong together never meet a client.
"""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from prometheus_client import Counter

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""As in a Secret of type `kubernetes.io/tls`."""
LOADED = Counter("nodemaintenance_serving_certificate_loads", "Times that a server took a certificate", ["result"])
log = logging.getLogger(__name__)
Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """The certificate in `folder`, which may come later: until it is there, no handshake succeeds.

    The folder is looked at when a connection begins, which costs two calls of `stat`: no timer, no thread, and no
    moment in which a client is shown a certificate that was replaced before it came.
    """

    def __init__(self, folder: Path) -> None:
        self._files = folder / CERTIFICATE, folder / KEY
        self._seen: Stamp | None = None
        self._current: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """A context for a listening socket, which shows each client the certificate that is there when it comes."""
        listening = _server_context()
        listening.sni_callback = self._choose  # asked of clients that name no server, too
        return listening

    def current(self) -> ssl.SSLContext | None:
        """What is shown now, None for nothing. What is there but cannot be used leaves the one before in place."""
        seen = self._stamp()
        if seen is not None and seen != self._seen:
            self._seen = seen  # taken before the files are read: what is written meanwhile is read at the next look
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
            context.load_cert_chain(*self._files, password="")  # an encrypted key fails: nobody is asked
        except OSError as error:  # ssl.SSLError is one
            LOADED.labels("failed").inc()
            log.error("the certificate in %s cannot be used: %s", self._files[0].parent, error)
            if not isinstance(error, ssl.SSLError):
                self._seen = None  # too many open files, say: that passes, and the next connection tries again
            return
        LOADED.labels("taken").inc()
        log.info("took the certificate in %s", self._files[0].parent)
        self._current = context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
