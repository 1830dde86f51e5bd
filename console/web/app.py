"""The web console: `create_app` and the list of its pages. `kubectl maintenance console` starts it.

The server renders the pages. Pages work without JavaScript; with JavaScript, an open page updates itself.

Touches: nodes list, watch; nodemaintenances list, watch; triggers list in node-maintenance;
brokers list in node-maintenance.
"""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask, Response, redirect, url_for
from werkzeug.wrappers import Response as AnyResponse

from console.web.audit import register_audit
from console.web.callers import IdentifyCaller
from console.web.cluster_state import ClusterWatcher
from console.web.context import ConsoleContext
from console.web.error_pages import register_error_handlers
from console.web.event_views import EventViews
from console.web.maintenance_views import MaintenanceViews
from console.web.node_views import NodeViews
from console.web.protection import register_protection
from console.web.redrive_views import RedriveViews
from console.web.run_views import RunViews
from eventing.journal.store import Journal
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.text_limits import format_count

MAX_STATE_AGE_SECONDS = 60.0
"""Maximum time since the console's data was last confirmed; after this time, the console is not ready."""
PROBE_ENDPOINTS = ("liveness", "readiness")
"""Endpoints that the kubelet probes at the pod's IP address."""


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
    """Build the console as a WSGI app.

    Code that discards the app before the process ends must close `app.extensions["live"]`.

    Args:
        client: The console's own API client.
        identify: Function that returns the caller of a request (see `callers`).
        journal: The journal, if there is one.
        functions_url: The functions' base URL, or "" to use the addresses in the Triggers.
        broker_url: URL of the broker, or "" to read it from the Broker object.
        hosts: Host names that the console accepts; empty means any.
        tls: Whether browsers connect over HTTPS.
    """
    app = Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    watcher = app.extensions["live"] = ClusterWatcher(client)
    context = ConsoleContext(client, watcher, identify, journal, functions_url, broker_url)
    template_globals = {
        "has_journal": journal is not None,
        "has_runs": context.has_runs,
        "stale_since": watcher.get_stale_since,
        "format_count": format_count,
    }
    app.jinja_env.globals.update(template_globals)
    register_audit(app, context)
    register_protection(app, tls=tls, hosts=list(hosts), probes=PROBE_ENDPOINTS)
    register_error_handlers(app)
    nodes, maintenances, runs = NodeViews(context), MaintenanceViews(context), RunViews(context)
    events, dead_letters = EventViews(context), RedriveViews(context)
    app.add_url_rule("/", "home", _redirect_home)
    app.add_url_rule("/nodes", "nodes", nodes.nodes)
    app.add_url_rule("/nodes/<name>", "node", nodes.node)
    app.add_url_rule("/nodes/<name>/machines", "machines", nodes.machines)
    app.add_url_rule("/live/nodes", "live_nodes", nodes.live_nodes)
    app.add_url_rule("/live/nodes/<name>", "live_node", nodes.live_node)
    app.add_url_rule("/start", "start", maintenances.start, methods=["GET", "POST"])
    app.add_url_rule("/stop", "stop", maintenances.stop, methods=["GET", "POST"])
    app.add_url_rule("/upgrades", "runs", runs.runs)
    app.add_url_rule("/upgrades/<namespace>/<name>", "run", runs.run)
    app.add_url_rule("/upgrades/<namespace>/<name>/status", "run_status", runs.run_status)
    app.add_url_rule("/upgrades/<namespace>/<name>/timeline", "run_timeline", runs.run_timeline)
    app.add_url_rule("/events", "events", events.events)
    app.add_url_rule("/events/<int:seq>", "event", events.event)
    app.add_url_rule("/events/<int:seq>/replay", "replay", events.replay, methods=["POST"])
    app.add_url_rule("/timeline/<name>", "timeline", events.timeline)
    app.add_url_rule("/dead-letters", "dead_letters", dead_letters.dead_letters)
    app.add_url_rule("/dead-letters/redrive", "redrive", dead_letters.redrive, methods=["POST"])
    app.add_url_rule("/dead-letters/redrive/<number>", "redrive_progress", dead_letters.progress)
    _add_health_routes(app, watcher)
    return app


def _redirect_home() -> AnyResponse:
    return redirect(url_for("nodes"))


def _add_health_routes(app: Flask, watcher: ClusterWatcher) -> None:
    """Add the probe endpoints.

    Liveness means that the process responds. Readiness means that nodes and maintenances were read, and that this data
    was confirmed recently.
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
