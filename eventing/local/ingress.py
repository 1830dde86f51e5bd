"""HTTP server of the local delivery: accepts events, and serves health checks and metrics."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from eventing.http_binding import MAX_BODY_BYTES, BadEvent, EventTooLarge
from eventing.local.delivery import DeliveryMetrics
from eventing.local.envelope import EmitEvent, parse_envelope
from eventing.logs import log

EVENT_PATHS = ("/", "/{namespace}/{broker}")
"""URL paths that accept events; the second one is the path of Knative's ingress.

No function may have one of these paths, because the ingress would respond instead of the function.
"""


def build_application(
    accept_event: EmitEvent, list_unready: Callable[[], list[str]], metrics: DeliveryMetrics
) -> web.Application:
    """Build the web application of the ingress.

    Args:
        accept_event: Function that stores an event.
        list_unready: Function that returns the names of the sources that are not ready.
        metrics: Metrics that the application serves.
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


@asynccontextmanager
async def serve_app(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` and yield its URL; if `port` is 0, the URL contains the port that the system chose."""
    logging.getLogger("aiohttp.server").addFilter(_strip_traceback)
    # Like Knative's ingress, this server does not decompress; a compressed body is rejected because it is not JSON.
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    try:
        await _start_listening(web.TCPSite(runner, host, port, shutdown_timeout=1), f"{host}:{port}")
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _start_listening(site: web.TCPSite, address: str) -> None:
    """Start listening on `address`. Raises `OSError`, which names the address and the remedy."""
    try:
        await site.start()
    except OSError as error:
        # The text of the error consists of the address and the reason.
        reason = (error.strerror or str(error)).rpartition(": ")[2]
        raise OSError(
            error.errno, f"cannot listen on {address}: {reason}; choose another address with --listen"
        ) from None


def _strip_traceback(record: logging.LogRecord) -> bool:
    """Reduce the log record about a malformed HTTP request to one line.

    The client has received a 400 response, and must not be able to fill the log with tracebacks.
    """
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.args, record.exc_info = f"rejected: {type(record.exc_info[1]).__name__}", None, None
    return True


async def _accept_event(request: web.Request, accept_event: EmitEvent) -> web.Response:
    """Store the event and return 202, or return an error response.

    For an invalid request, the status is 413 or 400, and the body is the reason, as in Knative's ingress. If the event
    cannot be stored, the status is 503.
    """
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return _build_error_response(413, f"body is too large: the limit is {MAX_BODY_BYTES} bytes")
    except (web.RequestPayloadError, OSError) as error:
        return _build_error_response(400, f"body is incomplete: {error}")
    try:
        accept_event(parse_envelope(request.headers, body))
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
