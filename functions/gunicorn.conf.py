"""Gunicorn settings: one process with a warm connection pool, and threads that mostly wait for the API server."""

import gc
import os
import sys

from gunicorn import glogging

from eventing import logs
from eventing.gunicorn_worker import DeadlineWorker


class Logger(glogging.Logger):
    """Logger without access logs.

    With a `logconfig_dict`, gunicorn formats an access log line per request even if no handler writes it.
    """

    def access(self, *_request: object) -> None:
        """Discard the access log record."""


FAILED_TO_BOOT = 3
"""Worker exit status that also stops the gunicorn parent process (`Arbiter.WORKER_BOOT_ERROR`)."""
bind = os.environ.get("BIND", "0.0.0.0:8080")
workers = 1
worker_class = DeadlineWorker
threads = 16 if os.environ.get("FUNCTION") else 10
"""Number of threads of a process that serves one function, or all functions.

More threads would not help: the requests share one core, and with too many concurrent requests, all of them miss their
deadlines. A request's deadline starts only when a thread handles the request.
"""
keepalive = 75
"""Seconds to keep idle connections: longer than brokers do, so that the server closes no connection that is in use."""
timeout = 30
graceful_timeout = 85
"""Seconds for completing requests in flight and publishing the last attempts (functions/serving/attempts.py)."""
logger_class = Logger
logconfig_dict = logs.LOGGING_CONFIG
"""Configuration with which gunicorn writes its log lines as JSON, like the functions (KNM-5)."""
control_socket_disable = True
"""Gunicorn would create the control socket in a home directory, which the pod's user does not have."""


def post_worker_init(_worker: object) -> None:
    """Freeze the objects that the imports created, so that the garbage collector does not scan them repeatedly.

    The process never frees these objects.
    """
    gc.collect()
    gc.freeze()


def post_fork(_server: object, _worker: object) -> None:
    """Exit if FUNCTION or a setting is invalid, with the status that stops gunicorn.

    With any other status, gunicorn would restart the worker forever. The check runs in the worker because the parent
    process does not need the imports and would keep its own copy of them in memory.
    """
    from functions.app import select_functions

    try:
        select_functions()
    except SystemExit as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(FAILED_TO_BOOT) from None
