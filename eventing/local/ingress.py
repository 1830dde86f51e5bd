"""HTTP server of the local delivery: accepts events, and serves health checks and metrics."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable

from aiohttp import web

from eventing.local import envelope
from eventing.local.envelope import Envelope
from eventing.local.metrics import Measures
from eventing.logs import log
from eventing.http_binding import BODY_LIMIT, BadEvent, TooLarge

Accept = Callable[[Envelope], None]
Waiting = Callable[[], list[str]]


PATHS = ("/", "/{namespace}/{broker}")
"""Paths that accept events; the second is that of Knative's ingress.

None may be the path of a function: the ingress would respond in the function's place.
"""


def application(accept: Accept, waiting: Waiting, measures: Measures) -> web.Application:
    """Build the web application. `accept` stores an event; `waiting` names the sources that are not ready."""

    async def event(request: web.Request) -> web.Response:
        return await _event(request, accept)

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(request: web.Request) -> web.Response:
        names = waiting()
        if names:
            return web.Response(status=503, text=f"waiting for {', '.join(names)}\n")
        return web.Response(text="ok\n")

    async def figures(request: web.Request) -> web.Response:
        return web.Response(body=measures.text(), headers={"content-type": "text/plain; version=0.0.4"})

    app = web.Application(client_max_size=BODY_LIMIT)
    app.router.add_get("/health/liveness", alive)
    app.router.add_get("/health/readiness", ready)
    app.router.add_get("/metrics", figures)
    for path in PATHS:
        app.router.add_post(path, event)
    return app


async def _event(request: web.Request, accept: Accept) -> web.Response:
    """Store the event and return 202, or return an error response.

    Like Knative's ingress it returns 413 or 400 with the reason for an invalid request. If the event cannot be stored,
    it returns 503.
    """
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return _refused(413, f"the body is over {BODY_LIMIT} bytes")
    except (web.RequestPayloadError, OSError) as error:
        return _refused(400, f"the body broke off: {error}")
    try:
        accept(envelope.received(request.headers, body))
    except BadEvent as error:
        return _refused(413 if isinstance(error, TooLarge) else 400, str(error))
    except sqlite3.Error as error:
        log("not accepted", logging.ERROR, error=str(error))
        return web.Response(status=503, text=f"the event could not be stored: {error}\n")
    return web.Response(status=202)


def _refused(status: int, reason: str) -> web.Response:
    line = " ".join(reason.split())
    log("refused", logging.WARNING, status=status, error=line)
    return web.Response(status=status, text=f"{line}\n")
