"""Entry point for Knative func's Python middleware, which imports `function` and calls `new()`.

The middleware speaks ASGI and the functions' Flask app speaks WSGI; a2wsgi translates. Images that run gunicorn do not
use this file.
"""

from __future__ import annotations

from typing import cast

from a2wsgi import WSGIMiddleware
from a2wsgi.asgi_typing import HTTPScope, Receive, Send
from a2wsgi.wsgi_typing import WSGIApp

from functions.app import create_app

WORKERS = 10
"""Threads that serve requests; further requests wait for a free thread.

With more threads on one CPU core, every request would miss its deadline.
"""


class Functions:
    """ASGI app that serves all functions by path, or only the function that `FUNCTION` names."""

    def __init__(self) -> None:
        # Flask and a2wsgi follow PEP 3333, but each library declares its own type for a WSGI app
        self._app = WSGIMiddleware(cast("WSGIApp", create_app()), workers=WORKERS)

    async def handle(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self._app(scope, receive, send)


def new() -> Functions:
    """Return the app; the middleware calls this function once, at startup."""
    return Functions()
