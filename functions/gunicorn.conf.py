"""Gunicorn's settings: one process with a warm connection pool, many threads that wait for the API server."""

import contextlib
import gc
import os
import socket
import sys
import time

from gunicorn import glogging
from gunicorn.workers import gthread

from eventing import logs

gthread.DEFAULT_WORKER_DATA_TIMEOUT = 0.5
"""Seconds that a thread waits for the first bytes of a connection, which then waits without one (5, if not said)."""


class Worker(gthread.ThreadWorker):
    """Waits neither at its end for connections on which no request ever came, nor ever for the rest of a request.

    A Go client opens one more than it uses now and then, and keeps it. gunicorn would wait for its first request as
    long as it may, so that the pod of an idle function took half a minute to end.

    What began to come and never ended held a thread for ever; ten of such, and no function answered.
    """

    request_seconds = 15.0
    """From a request's first bytes to its answer. No broker waits for that long: it has given the request up."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)
        self._handled: dict[gthread.TConn, float] = {}

    def handle(self, conn: gthread.TConn) -> object:
        """In a thread: one request."""
        self._handled[conn] = time.monotonic()
        try:
            return super().handle(conn)
        finally:
            del self._handled[conn]

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """In the main thread, once a second or more often."""
        super().wait_for_and_dispatch_events(timeout)
        latest = time.monotonic() - self.request_seconds
        for conn in [conn for conn, began in self._handled.copy().items() if began < latest]:
            with contextlib.suppress(OSError):  # it has been closed meanwhile
                conn.sock.shutdown(socket.SHUT_RDWR)

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout, deadline)


class Logger(glogging.Logger):
    """Writes no line for each request: with a `logconfig_dict` it would be put together, for nobody."""

    def access(self, *_request: object) -> None:
        """Do nothing."""


FAILED_TO_BOOT = 3
"""The status of a worker with which gunicorn ends, too: `Arbiter.WORKER_BOOT_ERROR`."""
bind = os.environ.get("BIND", "0.0.0.0:8080")
workers = 1
worker_class = Worker
threads = 16 if os.environ.get("FUNCTION") else 10
"""One function, or all. More at once do not go faster: they share a core and the time that each has for its answer, and
beyond some number all miss it. Who waits outside has not begun yet."""
keepalive = 75
"""Seconds; longer than the brokers' idle time, so that no connection dies under a request."""
timeout = 30
graceful_timeout = 25
"""Seconds for requests under way, and for what the process has yet to publish (functions/serving/attempts.py)."""
logger_class = Logger
logconfig_dict = logs.SETTINGS
"""Its own lines are JSON, too, as those of the functions are (KNM-5)."""
control_socket_disable = True
"""Its file would lie in a home directory that a pod's user does not have."""


def post_worker_init(_worker: object) -> None:
    """Spare the collector of garbage what is imported by now, and stays: it would go through all of it again."""
    gc.collect()
    gc.freeze()


def post_fork(_server: object, _worker: object) -> None:
    """End at once where FUNCTION names none: a worker that ends is started again for ever, but for this status.

    Asked in the worker: the parent has no use for what is imported for it, and would keep a copy of its own.
    """
    from functions.app import chosen

    try:
        chosen()
    except SystemExit as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(FAILED_TO_BOOT) from None
