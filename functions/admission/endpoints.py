"""HTTP endpoints of the webhook: `/validate` for the API server, and health checks and metrics for administrators."""

from __future__ import annotations

import asyncio
import json
import logging
import time

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest

from functions.admission.validate import validate
from functions.admission.watch_cache import WatchCache
from kube.admission.reviews import AdmissionRequest, InvalidReview, parse_review
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.deadline import set_deadline
from kube.paths import Object

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Maximum size of an AdmissionReview in bytes; the API server accepts objects of up to 3 MiB."""
REVIEW_TIMEOUT_SECONDS = 4.0
"""Time limit for a review, shorter than the webhook configuration's `timeoutSeconds`.

The webhook can therefore respond with an error message before the API server's own timeout, which shows the user no
reason.
"""
READY_TIMEOUT_SECONDS = 2.0
REVIEWS = Counter(
    "nodemaintenance_admission_reviews_total",
    "Checked objects by verdict: allowed, warned or refused; unanswered if the API server did not answer the webhook's "
    "own requests",
    ["verdict"],
)
REVIEW_SECONDS = Histogram(
    "nodemaintenance_admission_seconds",
    "Time that the API server waited for the response",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.5, 1, 5),
)
log = logging.getLogger("functions")


def build_application(cache: WatchCache, api: Api) -> web.Application:
    """Build the aiohttp application; it reports ready once the watch cache has completed its initial lists."""

    async def handle_review(request: web.Request) -> web.Response:
        started = time.perf_counter()
        try:
            review_request = parse_review(json.loads(await request.read()))
        except InvalidReview as error:
            return web.Response(status=400, text=f"{error}\n")
        except (ValueError, RecursionError):
            return web.Response(status=400, text="the request body is not valid JSON\n")
        review_response = await _build_review_response(review_request, cache, api)
        REVIEW_SECONDS.observe(time.perf_counter() - started)
        return review_response

    async def handle_liveness(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def handle_readiness(_: web.Request) -> web.Response:
        if cache.is_ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="NodeMaintenance objects and PodDisruptionBudgets are not listed yet\n")

    async def handle_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application(client_max_size=MAX_BODY_BYTES)
    application.router.add_post("/validate", handle_review)
    for path, handler in (
        ("/health/liveness", handle_liveness),
        ("/health/readiness", handle_readiness),
        ("/metrics", handle_metrics),
    ):
        application.router.add_get(path, handler)
    return application


async def _build_review_response(review_request: AdmissionRequest, cache: WatchCache, api: Api) -> web.Response:
    """Return 200 with the AdmissionReview, or 503 if its inputs cannot be read, so that the `failurePolicy` applies."""
    try:
        await cache.wait_until_ready(READY_TIMEOUT_SECONDS)
        with set_deadline(REVIEW_TIMEOUT_SECONDS - READY_TIMEOUT_SECONDS):
            review = await validate(review_request, cache, api)
    except asyncio.TimeoutError:
        return _build_unavailable_response("NodeMaintenance objects and PodDisruptionBudgets are not listed yet")
    except ApiError as error:
        return _build_unavailable_response(error.message)
    REVIEWS.labels(_classify_response(review["response"])).inc()
    return web.json_response(review)


def _build_unavailable_response(reason: str) -> web.Response:
    REVIEWS.labels("unanswered").inc()
    log.error("cannot review a NodeMaintenance: %s", reason)
    return web.Response(status=503, text=f"{reason}\n")


def _classify_response(response: Object) -> str:
    if not response["allowed"]:
        log.info("rejected a NodeMaintenance: %s", response["status"]["message"])
        return "refused"
    return "warned" if response.get("warnings") else "allowed"
