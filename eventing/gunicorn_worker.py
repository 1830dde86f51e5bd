"""The gunicorn worker of every server of ours: no client holds one of its threads for ever.

Imported by whom gunicorn serves alone: by the functions' settings and by the console.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from gunicorn.workers import gthread

gthread.DEFAULT_WORKER_DATA_TIMEOUT = 0.5  # type: ignore[misc] # the module reads it at each connection
"""Seconds that a thread waits for the first bytes of a connection, which then waits without one (5, if not said)."""


class Worker(gthread.ThreadWorker):
    """Waits neither at its end for connections on which no request ever came, nor ever for the rest of a request.

    A Go client opens one more than it uses now and then, and keeps it. gunicorn would wait for its first request as
    long as it may, so that the pod of an idle function took half a minute to end.

    What began to come and never ended held a thread for ever, and so did an answer that nobody took; as many of such
    as there are threads, and nobody was answered.
    """

    request_seconds = 15.0
    """From a request's first bytes to its answer. No broker waits for that long: it has given the request up."""
    answer_seconds = 15.0
    """From an answer's beginning to its end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._handled: dict[int, tuple[gthread.TConn, float]] = {}
        """Thread → the connection that it serves, and until when at most."""

    def load_wsgi(self) -> None:
        """Called by gunicorn, before the first request."""
        super().load_wsgi()
        self.wsgi = self._timing(self.wsgi)

    def _timing(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """The same app; as soon as it begins its answer, that has time of its own."""

        def timed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            def started(*arguments: Any, **named: Any) -> Any:
                thread = threading.get_ident()
                conn, _ = self._handled[thread]
                self._handled[thread] = conn, time.monotonic() + self.answer_seconds
                return start_response(*arguments, **named)

            return app(environ, started)

        return timed

    def handle(self, conn: gthread.TConn) -> Any:
        """In a thread: one request."""
        thread = threading.get_ident()
        self._handled[thread] = conn, time.monotonic() + self.request_seconds
        try:
            return super().handle(conn)
        finally:
            del self._handled[thread]

    def wait_for_and_dispatch_events(self, timeout: float | None) -> None:
        """In the main thread, once a second or more often."""
        super().wait_for_and_dispatch_events(timeout)
        now = time.monotonic()
        for conn in [conn for conn, until in self._handled.copy().values() if until < now]:
            with contextlib.suppress(OSError):  # it has been closed meanwhile
                conn.sock.shutdown(socket.SHUT_RDWR)

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)  # type: ignore[misc] # its stubs are of an older one
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout or deadline, deadline)
