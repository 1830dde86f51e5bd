"""The web console: `create_app` and the list of its pages. `kubectl maintenance console` starts it.

The server renders the pages. They work without JavaScript; with JavaScript they update themselves.

Touches: nodes list, watch; nodemaintenances list, watch; triggers list in node-maintenance;
brokers list in node-maintenance.
"""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask, Response, redirect, url_for
from werkzeug.wrappers import Response as AnyResponse

from console.web.maintenance_views import Acting
from console.web.audit import audit
from console.web.callers import Identify
from console.web.context import Context
from console.web.event_views import EventPages
from console.web.error_pages import show_errors
from console.web.cluster_state import Live
from console.web.node_views import Pages
from console.web.protection import protect
from console.web.redrive_views import Redriving
from console.web.run_views import RunPages
from eventing.journal.store import Journal
from kube.client.api_errors import ApiError
from kube.client.sync_client import Cluster
from kube.text_limits import counted

OLD_SECONDS = 60.0
"""The console is not ready if its data was last confirmed longer ago than this."""
PROBES = ("liveness", "readiness")
"""The endpoints that a kubelet probes, by the pod's address."""


def create_app(
    cluster: Cluster,
    identify: Identify,
    *,
    journal: Journal | None = None,
    functions: str = "",
    broker: str = "",
    hosts: Sequence[str] = (),
    tls: bool = False,
) -> Flask:
    """Build the console as a WSGI app.

    Code that discards the app before the process ends must close `app.extensions["live"]`.

    Args:
        cluster: The console's own API client.
        identify: Function that returns the caller of a request (see `callers`).
        journal: The journal, if there is one.
        functions: URL under which functions are found by name, "" to use the Triggers' addresses.
        broker: URL of the broker, "" to read it from the Broker.
        hosts: Host names that the console answers to; empty means any.
        tls: Whether browsers connect by HTTPS.
    """
    app = Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    live = app.extensions["live"] = Live(cluster)
    context = Context(cluster, live, identify, journal, functions, broker)
    known = {"has_journal": journal is not None, "has_runs": context.has_runs, "stale_since": live.stale_since}
    app.jinja_env.globals.update(known, counted=counted)
    audit(app, context)
    protect(app, tls=tls, hosts=list(hosts), probes=PROBES)
    show_errors(app)
    pages, acting, events, redriving = Pages(context), Acting(context), EventPages(context), Redriving(context)
    runs = RunPages(context)
    app.add_url_rule("/", "home", _home)
    app.add_url_rule("/nodes", "nodes", pages.nodes)
    app.add_url_rule("/nodes/<name>", "node", pages.node)
    app.add_url_rule("/nodes/<name>/machines", "machines", pages.machines)
    app.add_url_rule("/live/nodes", "live_nodes", pages.live_nodes)
    app.add_url_rule("/live/nodes/<name>", "live_node", pages.live_node)
    app.add_url_rule("/start", "start", acting.start, methods=["GET", "POST"])
    app.add_url_rule("/stop", "stop", acting.stop, methods=["GET", "POST"])
    app.add_url_rule("/upgrades", "runs", runs.runs)
    app.add_url_rule("/upgrades/<namespace>/<name>", "run", runs.run)
    app.add_url_rule("/upgrades/<namespace>/<name>/status", "run_status", runs.run_status)
    app.add_url_rule("/upgrades/<namespace>/<name>/timeline", "run_timeline", runs.run_timeline)
    app.add_url_rule("/events", "events", events.events)
    app.add_url_rule("/events/<int:seq>", "event", events.event)
    app.add_url_rule("/events/<int:seq>/replay", "replay", events.replay, methods=["POST"])
    app.add_url_rule("/timeline/<name>", "timeline", events.timeline)
    app.add_url_rule("/dead-letters", "dead_letters", redriving.dead_letters)
    app.add_url_rule("/dead-letters/redrive", "redrive", redriving.redrive, methods=["POST"])
    app.add_url_rule("/dead-letters/redrive/<number>", "redrive_progress", redriving.progress)
    _add_health(app, live)
    return app


def _home() -> AnyResponse:
    return redirect(url_for("nodes"))


def _add_health(app: Flask, live: Live) -> None:
    """Add the probe endpoints.

    Liveness means that the process answers. Readiness means that nodes and maintenances were read, and confirmed
    recently.
    """

    @app.get("/health/liveness")
    def liveness() -> Response:
        return Response("alive\n", mimetype="text/plain")

    @app.get("/health/readiness")
    def readiness() -> Response:
        try:
            live.now(0)
        except ApiError as error:
            return Response(f"not ready: {error.message}\n", 503, mimetype="text/plain")
        if (age := live.age()) > OLD_SECONDS:
            text = f"not ready: what is shown was last known to be so {age:.0f} s ago\n"
            return Response(text, 503, mimetype="text/plain")
        return Response("ready\n", mimetype="text/plain")
