"""Builds the web console's Flask app and its URL map. `kubectl maintenance console` serves the app.

The server renders the pages. Pages work without JavaScript; with JavaScript, an open page updates itself.

Touches: nodes list, watch; nodemaintenances list, watch; triggers list in node-maintenance;
brokers list in node-maintenance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from flask import Flask, Response, make_response, render_template
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.wrappers import Response as AnyResponse

from console.operations.errors import OperationError
from console.web.audit import get_http_status, register_audit, set_refusal_reason
from console.web.callers import IdentifyCaller
from console.web.certificate_views import CertificateViews
from console.web.cluster_state import ClusterWatcher
from console.web.context import ConsoleContext
from console.web.cpu_label_views import CpuLabelViews
from console.web.event_views import EventViews
from console.web.maintenance_views import MaintenanceViews
from console.web.node_views import NodeViews
from console.web.overview_views import OverviewViews
from console.web.protection import register_protection
from console.web.redrive_views import RedriveViews
from console.web.run_views import RunViews
from console.web.streams import PageStreams
from eventing.journal.store import Journal, JournalError, UnstorableData
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.text_limits import format_count

MAX_STATE_AGE_SECONDS = 60.0
"""Maximum age in seconds of the last confirmation of the watched state; beyond it, the console is not ready."""
PROBE_ENDPOINTS = ("liveness", "readiness")
"""Flask endpoints of the probes, which the kubelet sends to the pod's IP address."""


def create_app(
    client: SyncClient,
    identify: IdentifyCaller,
    *,
    journal: Journal | None = None,
    functions_url: str = "",
    broker_url: str = "",
    hosts: Sequence[str] = (),
    tls: bool = False,
) -> Flask:
    """Build the console's WSGI app.

    A caller that discards the app before the process exits must close `app.extensions["live"]`.

    Args:
        client: The console's own API client.
        identify: Function that returns the caller of an HTTP request (see `callers`).
        journal: The journal, or None if none is configured.
        functions_url: The functions' base URL, or "" to use the URLs in the Triggers.
        broker_url: URL of the broker, or "" to read it from the Broker object.
        hosts: Values of the Host header that the console accepts; empty means any.
        tls: Whether browsers connect over HTTPS.
    """
    app = Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    watcher = app.extensions["live"] = ClusterWatcher(client)
    context = ConsoleContext(client, watcher, identify, journal, functions_url, broker_url)
    app.jinja_env.globals.update(
        has_journal=journal is not None,
        is_shown=context.is_shown,
        stale_since=watcher.get_stale_since,
        format_count=format_count,
    )
    register_audit(app, context)
    register_protection(app, tls=tls, hosts=list(hosts), probes=PROBE_ENDPOINTS)
    _register_error_handlers(app)
    _add_pages(app, context)
    _add_health_routes(app, watcher)
    return app


def _add_pages(app: Flask, context: ConsoleContext) -> None:
    streams = PageStreams(context.watcher)
    overview, nodes = OverviewViews(context, streams), NodeViews(context, streams)
    maintenances, runs = MaintenanceViews(context), RunViews(context)
    events, dead_letters = EventViews(context), RedriveViews(context)
    certificates, cpu_labels = CertificateViews(context), CpuLabelViews(context)

    def add(url: str, endpoint: str, view: Callable[..., Response | AnyResponse | str], *methods: str) -> None:
        app.add_url_rule(url, endpoint, view, methods=methods or ["GET"])

    add("/", "home", overview.home)
    add("/live/home", "live_home", overview.live_home)
    add("/nodes", "nodes", nodes.nodes)
    add("/nodes/<name>", "node", nodes.node)
    add("/nodes/<name>/machines", "machines", nodes.machines)
    add("/nodes/<name>/scale-commands", "scale_commands", nodes.scale_commands)
    add("/live/nodes", "live_nodes", nodes.live_nodes)
    add("/live/nodes/<name>", "live_node", nodes.live_node)
    add("/start", "start", maintenances.start, "GET", "POST")
    add("/stop", "stop", maintenances.stop, "GET", "POST")
    add("/upgrades", "runs", runs.runs)
    add("/upgrades/<namespace>/<name>", "run", runs.run)
    add("/upgrades/<namespace>/<name>/status", "run_status", runs.run_status)
    add("/upgrades/<namespace>/<name>/timeline", "run_timeline", runs.run_timeline)
    add("/events", "events", events.events)
    add("/events/tail", "events_tail", events.tail)
    add("/events/<int:seq>", "event", events.event)
    add("/events/<int:seq>/replay", "replay", events.replay, "POST")
    add("/timeline/<name>", "timeline", events.timeline)
    add("/dead-letters", "dead_letters", dead_letters.dead_letters)
    add("/dead-letters/redrive", "redrive", dead_letters.redrive, "POST")
    add("/dead-letters/discard", "discard", dead_letters.discard, "POST")
    add("/dead-letters/redrive/<number>", "redrive_progress", dead_letters.progress)
    add("/certificates", "certificates", certificates.certificates)
    add("/cpu-labels", "cpu_labels", cpu_labels.cpu_labels)


def _register_error_handlers(app: Flask) -> None:
    """Register handlers that render every error as a page with HTTP status and message, without internal details."""
    app.register_error_handler(OperationError, lambda error: _render_error(error.message, error.http_status))
    app.register_error_handler(ApiError, lambda error: _render_error(error.message, get_http_status(error)))
    app.register_error_handler(JournalError, lambda error: _render_error(str(error), HTTPStatus.SERVICE_UNAVAILABLE))
    app.register_error_handler(UnstorableData, lambda error: _render_error(str(error), HTTPStatus.BAD_REQUEST))
    app.register_error_handler(HTTPException, _handle_http_error)


def _render_error(message: str, status: int) -> Response:
    """Build the error page, or, for an htmx request, only the part that htmx inserts into the page."""
    set_refusal_reason(message)
    response = make_response(render_template("error.html", message=message, status=HTTPStatus(status)), status)
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _handle_http_error(error: HTTPException) -> AnyResponse:
    if isinstance(error, SecurityError):  # The links in an HTML page would contain the untrusted Host.
        return Response(f"{error.description}\n", HTTPStatus.BAD_REQUEST, mimetype="text/plain")
    if error.code is None or error.code < 400:
        return error.get_response()  # The "error" is one of Flask's redirects.
    return _render_error(str(error.description), error.code)


def _add_health_routes(app: Flask, watcher: ClusterWatcher) -> None:
    """Add the endpoints of the liveness and readiness probes.

    The console is live if it responds, and ready if nodes and maintenances were read and recently confirmed.
    """

    @app.get("/health/liveness")
    def liveness() -> Response:
        return Response("alive\n", mimetype="text/plain")

    @app.get("/health/readiness")
    def readiness() -> Response:
        try:
            watcher.get_state(0)
        except ApiError as error:
            return Response(f"not ready: {error.message}\n", 503, mimetype="text/plain")
        if (age := watcher.get_age_seconds()) > MAX_STATE_AGE_SECONDS:
            message = f"not ready: nodes and maintenances were last confirmed {age:.0f} s ago\n"
            return Response(message, 503, mimetype="text/plain")
        return Response("ready\n", mimetype="text/plain")
