"""Entry point for Knative func's Python middleware, which imports `function` and calls `new()`.

The middleware speaks ASGI and the functions' Flask app speaks WSGI; a2wsgi translates. Images that run gunicorn do not
use this file.
"""

from __future__ import annotations

import logging.config
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from a2wsgi import WSGIMiddleware
from a2wsgi.asgi_typing import HTTPScope, Receive, Send
from a2wsgi.wsgi_typing import WSGIApp

from eventing import logs
from functions.app import create_app, find_readiness_problem
from kube.client.sync_client import SyncClient

WORKERS = 10
"""Threads that serve requests; further requests wait for a free thread.

With more threads on one CPU core, every request would miss its deadline.
"""


class Functions:
    """ASGI app that serves all functions by path, or only the function that `FUNCTION` names."""

    def __init__(self) -> None:
        # func's scaffolding configures plain text, without the fields of the functions' log lines.
        logging.config.dictConfig(logs.LOGGING_CONFIG)
        self._client = SyncClient()
        # Flask and a2wsgi follow PEP 3333, but each library declares its own type for a WSGI app
        self._app = WSGIMiddleware(cast("WSGIApp", create_app(self._client)), workers=WORKERS)
        self._checker = ThreadPoolExecutor(1, "readiness")
        self._problem = "the API server was not checked yet"
        self._check = self._start_check()

    def _start_check(self) -> Future[str]:
        return self._checker.submit(find_readiness_problem, self._client)

    async def handle(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self._app(scope, receive, send)

    def ready(self) -> tuple[bool, str]:
        """Return whether the last completed check reached the API server, and a message; start the next check.

        The middleware calls this method for each readiness probe, in its event loop: waiting for the API server would
        block all requests, and the liveness probe.
        """
        if self._check.done():
            self._problem = self._check.result()
            self._check = self._start_check()
        return not self._problem, self._problem or "ready"


def new() -> Functions:
    """Return the app; the middleware calls this function once, at startup."""
    return Functions()
