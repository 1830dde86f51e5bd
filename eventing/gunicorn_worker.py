"""The gunicorn worker of all HTTP servers in this project: no client can occupy a thread indefinitely.

Only code that gunicorn loads imports this module: the functions' gunicorn settings and the console.
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
"""Seconds that a thread waits for a connection's first bytes (gunicorn's default: 5).

After that the connection waits in the worker's poller, without a thread.
"""


class Worker(gthread.ThreadWorker):
    """A threaded gunicorn worker that closes the connections of clients that stall.

    On shutdown it waits only briefly for connections without a request. A Go client sometimes opens one more connection
    than it uses. With gunicorn's own worker, the pod of an idle function took 30 seconds to terminate, because the
    worker waited for that connection's first request.

    It also closes connections whose request does not complete, or whose client does not read the response. Without this
    limit, such clients can occupy all threads.
    """

    request_seconds = 15.0
    """Maximum seconds from a request's first bytes to the start of its response; brokers time out earlier."""
    answer_seconds = 15.0
    """Maximum seconds from the start of a response to its end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._handled: dict[int, tuple[gthread.TConn, float]] = {}
        """Thread id → the connection that the thread serves, and its deadline."""

    def load_wsgi(self) -> None:
        """Load the application and wrap it with `_timing`; gunicorn calls this before the first request."""
        super().load_wsgi()
        self.wsgi = self._timing(self.wsgi)

    def _timing(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """Wrap the application so that the start of a response renews the connection's deadline."""

        def timed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            def started(*arguments: Any, **named: Any) -> Any:
                thread = threading.get_ident()
                conn, _ = self._handled[thread]
                self._handled[thread] = conn, time.monotonic() + self.answer_seconds
                return start_response(*arguments, **named)

            return app(environ, started)

        return timed

    def handle(self, conn: gthread.TConn) -> Any:
        """Handle one request in a worker thread, and track its connection's deadline."""
        thread = threading.get_ident()
        self._handled[thread] = conn, time.monotonic() + self.request_seconds
        try:
            return super().handle(conn)
        finally:
            del self._handled[thread]

    def wait_for_and_dispatch_events(self, timeout: float | None) -> None:
        """Dispatch events, then shut down the connections that are past their deadline.

        gunicorn calls this in the main thread, at least once a second.
        """
        super().wait_for_and_dispatch_events(timeout)
        now = time.monotonic()
        for conn in [conn for conn, until in self._handled.copy().values() if until < now]:
            with contextlib.suppress(OSError):  # already closed
                conn.sock.shutdown(socket.SHUT_RDWR)

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)  # type: ignore[misc] # its stubs are of an older one
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout or deadline, deadline)
