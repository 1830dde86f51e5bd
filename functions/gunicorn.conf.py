"""Gunicorn's settings: one process with a warm connection pool, many threads that wait for the API server."""

import gc
import os
import sys

from gunicorn import glogging

from eventing import logs
from eventing.gunicorn_worker import Worker


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
