"""The gunicorn worker of all HTTP servers in this project, in which no client can occupy a thread indefinitely.

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

gthread.DEFAULT_WORKER_DATA_TIMEOUT = 0.5  # type: ignore[misc] # gunicorn reads this for each connection
"""Seconds for which a thread waits for the first bytes of a connection (gunicorn's default: 5).

After that time, the connection waits in the worker's poller, without a thread.
"""


class DeadlineWorker(gthread.ThreadWorker):
    """A threaded gunicorn worker that closes the connections of clients that stall.

    The worker closes connections whose request does not complete, or whose client does not read the response.
    Otherwise, such clients could occupy all threads.

    On shutdown, the worker waits only briefly for connections without a request. A Go client sometimes opens one more
    connection than it uses. gunicorn's own worker waited 30 seconds for that connection's first request. This wait
    delayed the termination of an idle function's pod.
    """

    request_timeout_seconds = 15.0
    """Maximum seconds from the first bytes of a request to the start of its response; brokers time out earlier."""
    response_timeout_seconds = 15.0
    """Maximum seconds from the start of a response to its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadlines: dict[int, tuple[gthread.TConn, float]] = {}
        """The connection that each thread serves, and the connection's deadline, by thread id."""

    def load_wsgi(self) -> None:
        """Load the WSGI application and wrap it with `_wrap_app`; gunicorn calls this before the first request."""
        super().load_wsgi()
        self.wsgi = self._wrap_app(self.wsgi)

    def _wrap_app(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """Wrap the application so that the start of a response extends the connection's deadline."""

        def wrapped_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            def start_timed_response(*args: Any, **kwargs: Any) -> Any:
                thread = threading.get_ident()
                conn, _ = self._deadlines[thread]
                self._deadlines[thread] = conn, time.monotonic() + self.response_timeout_seconds
                return start_response(*args, **kwargs)

            return app(environ, start_timed_response)

        return wrapped_app

    def handle(self, conn: gthread.TConn) -> Any:
        """Handle one request in a worker thread, and track the deadline of its connection."""
        thread = threading.get_ident()
        self._deadlines[thread] = conn, time.monotonic() + self.request_timeout_seconds
        try:
            return super().handle(conn)
        finally:
            del self._deadlines[thread]

    def wait_for_and_dispatch_events(self, timeout: float | None) -> None:
        """Dispatch events, then shut down the connections whose deadline has passed.

        gunicorn calls this method in the main thread, at least once a second.
        """
        super().wait_for_and_dispatch_events(timeout)
        now = time.monotonic()
        for conn in [conn for conn, deadline in self._deadlines.copy().values() if deadline < now]:
            with contextlib.suppress(OSError):  # the socket may already be closed
                conn.sock.shutdown(socket.SHUT_RDWR)

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)  # type: ignore[misc] # the stubs describe an older gunicorn
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout or deadline, deadline)
