"""Gunicorn settings: one worker process with several threads, which share one connection pool to the API server."""

import gc
import os
import sys

from gunicorn import glogging

from eventing import logs
from eventing.gunicorn_worker import DeadlineWorker


class Logger(glogging.Logger):
    """Logger without access logs.

    With a `logconfig_dict`, gunicorn formats an access log record for each request, even if no handler writes it.
    """

    def access(self, *_request: object) -> None:
        """Discard the access log record."""


FAILED_TO_BOOT = 3
"""Worker exit status after which gunicorn stops instead of restarting the worker (`Arbiter.WORKER_BOOT_ERROR`)."""
bind = os.environ.get("BIND", "0.0.0.0:8080")
workers = 1
worker_class = DeadlineWorker
threads = 16 if os.environ.get("FUNCTION") else 10
"""Number of threads: 16 if the process serves one function, 10 if it serves all.

The requests share one CPU core. With more threads, too many concurrent requests would all miss their deadlines. A
request's deadline starts only when a thread begins to handle the request, so queued requests lose no time.
"""
keepalive = 75
"""Seconds to keep idle connections open.

Brokers close idle connections earlier, so the server never closes a connection just as a broker reuses it.
"""
timeout = 30
graceful_timeout = 85
"""Seconds for completing in-flight requests and publishing the last attempts (functions/serving/attempts.py)."""
logger_class = Logger
logconfig_dict = logs.LOGGING_CONFIG
"""Logging configuration of the functions, with which gunicorn also writes its log lines as JSON (KNM-5)."""
control_socket_disable = True
"""Disabled, because gunicorn creates the control socket in the home directory and the container's user has none."""


def post_worker_init(_worker: object) -> None:
    """Exclude all objects that exist after startup from garbage collection, because the process never frees them."""
    gc.collect()
    gc.freeze()


def post_fork(_server: object, _worker: object) -> None:
    """Exit with `FAILED_TO_BOOT` if FUNCTION or another environment variable is invalid, so that gunicorn stops.

    With any other exit status, gunicorn would restart the worker forever. The check runs in the worker, because in the
    parent process the imported modules would only waste memory.
    """
    from functions.app import select_functions

    try:
        select_functions()
    except SystemExit as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(FAILED_TO_BOOT) from None
