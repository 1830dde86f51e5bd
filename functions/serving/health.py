"""Endpoints for liveness, readiness and metrics, which `app` serves next to those of the functions."""

from __future__ import annotations

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from functions.serving.responses import build_text_response
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient


def add_health_routes(app: Flask, client: SyncClient) -> None:
    """Add the endpoints; liveness depends only on this process, readiness also on the API server."""

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
    """Return why this process is not ready, or "" if the API server responds."""
    try:
        client.get("/version")
    except ApiError as error:
        return f"the API server does not answer: {error.message}"
    return ""
