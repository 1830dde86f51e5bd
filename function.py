"""The door for Knative func's Python middleware, which imports `function` and calls `new()`.

It speaks ASGI, the functions' app is Flask: a2wsgi stands between. An image with gunicorn does without this file.
"""

from __future__ import annotations

from typing import cast

from a2wsgi import WSGIMiddleware
from a2wsgi.asgi_typing import HTTPScope, Receive, Send
from a2wsgi.wsgi_typing import WSGIApp

from functions.app import create_app

WORKERS = 10
"""Threads that wait for the API server; the next request waits for one of them. More would share one core for so long
that all miss the time that each has."""


class Functions:
    """All functions by path, or with `FUNCTION` set that one alone."""

    def __init__(self) -> None:
        # both sides mean PEP 3333, and each has its own type for it
        self._app = WSGIMiddleware(cast("WSGIApp", create_app()), workers=WORKERS)

    async def handle(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app(scope, receive, send)


def new() -> Functions:
    """What the middleware calls once, at its start."""
    return Functions()
