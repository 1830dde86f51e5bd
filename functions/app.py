"""Imports the functions of all components, which register themselves, and builds the Flask app that serves them.

With `FUNCTION=evict`, the app serves only `evict`, at `/` and `/evict`. If `FUNCTION` is unset, the app serves each
function at its own path. Gunicorn (`functions.app:create_app()`), Knative func's middleware and the tests run the app.
"""

from __future__ import annotations

import os

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from eventing import logs
from eventing.http_binding import MAX_BODY_BYTES
from eventing.journal.retention import Retention

# isort: off
# Importing a step's module registers the step. The reference page and error messages list the steps in this order.
from functions.maintenance import begin, cordon, taint, evict, status, restore, guard, resync  # noqa: F401
from functions.certificates import renew_certificates  # noqa: F401
from functions.mutex import check_rule, check_target, check_run, detect_upgrade, claim_pools, pause_pools  # noqa: F401
from functions.mutex import label_nodes, edit_pools, run_job, release_node, await_version, restore_pools  # noqa: F401
from functions.mutex import resync_runs  # noqa: F401
from functions.virtualization import migrate, protect  # noqa: F401
from functions.cpu_labels import label_cpu  # noqa: F401
from functions.node_conditions import publish_conditions  # noqa: F401
from functions.notifications import notify_owners  # noqa: F401
from functions import record  # noqa: F401
# isort: on

from functions.certificates.settings import Settings
from functions.mutex.active_run import parse_upgrade_timeout
from functions.notifications.settings import Settings as NotificationSettings
from functions.serving.attempts import Publisher
from functions.serving.handler import build_view
from functions.serving.responses import build_text_response
from functions.serving.tracing import AttemptTracer, is_tracing_enabled
from functions.steps import REGISTERED_FUNCTIONS, Function
from functions.virtualization.migrate import parse_migration_slots
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.evictions.limiters import parse_evictions_per_second

FUNCTIONS = REGISTERED_FUNCTIONS
"""All functions by name; the imports above register them."""


def create_app(client: SyncClient | None = None) -> Flask:
    """Create the Flask app; without `client`, connect to the cluster that the environment configures.

    Raises `SystemExit` if an environment variable is invalid; see `select_functions`.
    """
    logs.configure()
    served_functions = select_functions()
    app = Flask("functions")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    client = client or SyncClient()
    publisher, tracer = Publisher.from_environment(), AttemptTracer.from_environment()
    for function in served_functions:
        view = build_view(function, client, publisher, tracer)
        app.add_url_rule(f"/{function.name}", function.name, view, methods=["POST"])
    if len(served_functions) == 1:
        app.add_url_rule("/", "alone", app.view_functions[served_functions[0].name], methods=["POST"])
    _add_health_routes(app, client)
    return app


def select_functions() -> list[Function]:
    """Return the function that the environment variable FUNCTION names, or all functions if FUNCTION is unset.

    Raises `SystemExit` if FUNCTION is unknown, if another environment variable is invalid, or if a trace collector is
    configured but the OpenTelemetry library is not installed.
    """
    name = os.environ.get("FUNCTION")
    if name and name not in FUNCTIONS:
        raise SystemExit(
            f"FUNCTION={name} is unknown: set it to one of {', '.join(FUNCTIONS)}, or unset it to serve all"
        )
    try:
        Retention.from_environment(os.environ)
        parse_evictions_per_second(os.environ)
        is_tracing_enabled(os.environ)
        Settings.from_environment(os.environ)
        parse_upgrade_timeout(os.environ)
        parse_migration_slots(os.environ)
        NotificationSettings.from_environment(os.environ)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return [FUNCTIONS[name]] if name else list(FUNCTIONS.values())


def _add_health_routes(app: Flask, client: SyncClient) -> None:
    """Add the routes for probes and metrics; only the readiness probe depends on the API server."""

    @app.get("/health/liveness")
    def get_liveness() -> Response:
        return build_text_response("alive\n", 200)

    @app.get("/health/readiness")
    def get_readiness() -> Response:
        problem = find_readiness_problem(client)
        return build_text_response(problem or "ready", 503 if problem else 200)

    @app.get("/metrics")
    def get_metrics() -> Response:
        return Response(generate_latest(), content_type=CONTENT_TYPE_LATEST)


def find_readiness_problem(client: SyncClient) -> str:
    """Return the API server's error as the reason why this process is not ready, or "" if the API server responds."""
    try:
        client.get("/version")
    except ApiError as error:
        return f"the API server does not respond: {error.message}"
    return ""
