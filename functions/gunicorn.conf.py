"""Gunicorn's settings: one process with a warm connection pool, many threads that wait for the API server."""

import os

bind = os.environ.get("BIND", "0.0.0.0:8080")
workers = 1
worker_class = "gthread"
threads = 32
keepalive = 75
"""Seconds; longer than the brokers' idle time, so that no connection dies under a request."""
timeout = 30
graceful_timeout = 5
accesslog = None
control_socket_disable = True
