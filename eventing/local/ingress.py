"""HTTP server of the local delivery: accepts events, and serves health checks and metrics."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable

from aiohttp import web

from eventing.http_binding import MAX_BODY_BYTES, BadEvent, EventTooLarge
from eventing.local import envelope
from eventing.local.envelope import Envelope
from eventing.local.metrics import DeliveryMetrics
from eventing.logs import log

AcceptEvent = Callable[[Envelope], None]
ListUnreadySources = Callable[[], list[str]]


EVENT_PATHS = ("/", "/{namespace}/{broker}")
"""Paths that accept events; the second is that of Knative's ingress.

No function may use one of these paths, because the ingress would respond instead of the function.
"""


def build_application(
    accept_event: AcceptEvent, list_unready: ListUnreadySources, metrics: DeliveryMetrics
) -> web.Application:
    """Build the web application.

    Args:
        accept_event: Stores an event.
        list_unready: Returns the names of the sources that are not ready.
        metrics: The metrics that the application serves.
    """

    async def handle_event(request: web.Request) -> web.Response:
        return await _accept_event(request, accept_event)

    async def handle_liveness(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def handle_readiness(request: web.Request) -> web.Response:
        names = list_unready()
        if names:
            return web.Response(status=503, text=f"sources not ready: {', '.join(names)}\n")
        return web.Response(text="ok\n")

    async def handle_metrics(request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"content-type": "text/plain; version=0.0.4"})

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/health/liveness", handle_liveness)
    app.router.add_get("/health/readiness", handle_readiness)
    app.router.add_get("/metrics", handle_metrics)
    for path in EVENT_PATHS:
        app.router.add_post(path, handle_event)
    return app


async def _accept_event(request: web.Request, accept_event: AcceptEvent) -> web.Response:
    """Store the event and return 202, or return an error response.

    For an invalid request, it returns 413 or 400 with the reason, as Knative's ingress does. If the event cannot be
    stored, it returns 503.
    """
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return _build_error_response(413, f"body is too large: the limit is {MAX_BODY_BYTES} bytes")
    except (web.RequestPayloadError, OSError) as error:
        return _build_error_response(400, f"body is incomplete: {error}")
    try:
        accept_event(envelope.parse_envelope(request.headers, body))
    except BadEvent as error:
        return _build_error_response(413 if isinstance(error, EventTooLarge) else 400, str(error))
    except sqlite3.Error as error:
        log("failed to store the event", logging.ERROR, error=str(error))
        return web.Response(status=503, text=f"failed to store the event: {error}\n")
    return web.Response(status=202)


def _build_error_response(status: int, reason: str) -> web.Response:
    line = " ".join(reason.split())
    log("rejected", logging.WARNING, status=status, error=line)
    return web.Response(status=status, text=f"{line}\n")
