"""HTTP endpoints of the webhook: `/validate` for the API server, and health checks and metrics for administrators."""

from __future__ import annotations

import asyncio
import json
import logging
import time

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest

from functions.admission.validate import validate
from functions.admission.watch_cache import Watched
from kube.admission.reviews import BadReview, Question, question
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.deadline import within
from kube.paths import Object

BODY_LIMIT = 4 * 1024 * 1024
"""Maximum bytes of an AdmissionReview; the API server accepts objects of up to 3 MiB."""
SECONDS_TO_ANSWER = 4.0
"""Time limit of a review, shorter than `timeoutSeconds` of the webhook configuration.

The response then contains a reason, which a timeout of the API server would not.
"""
SECONDS_TO_START = 2.0
REVIEWS = Counter("nodemaintenance_admission_reviews_total", "Objects that were judged", ["verdict"])
SECONDS = Histogram(
    "nodemaintenance_admission_seconds",
    "Time that the API server waited",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.5, 1, 5),
)
log = logging.getLogger("functions")


def pages(watched: Watched, api: Api) -> web.Application:
    """Build the application. It is ready once it has received all objects that existed at its start."""

    async def review(request: web.Request) -> web.Response:
        started = time.perf_counter()
        try:
            asked = question(json.loads(await request.read()))
        except BadReview as error:
            return web.Response(status=400, text=f"{error}\n")
        except (ValueError, RecursionError):
            return web.Response(status=400, text="the body is no JSON\n")
        response = await _answer(asked, watched, api)
        SECONDS.observe(time.perf_counter() - started)
        return response

    async def liveness(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def readiness(_: web.Request) -> web.Response:
        if watched.ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="the NodeMaintenance objects are not known yet\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application(client_max_size=BODY_LIMIT)
    application.router.add_post("/validate", review)
    for path, page in (("/health/liveness", liveness), ("/health/readiness", readiness), ("/metrics", metrics)):
        application.router.add_get(path, page)
    return application


async def _answer(asked: Question, watched: Watched, api: Api) -> web.Response:
    """Return 200 with the review, or 503 if it cannot be decided now; then the configured `failurePolicy` applies."""
    try:
        await watched.until_ready(SECONDS_TO_START)
        with within(SECONDS_TO_ANSWER - SECONDS_TO_START):
            answered = await validate(asked, watched, api)
    except asyncio.TimeoutError:
        return _unanswered("the NodeMaintenance objects are not known yet")
    except ApiError as error:
        return _unanswered(error.message)
    REVIEWS.labels(_verdict(answered["response"])).inc()
    return web.json_response(answered)


def _unanswered(reason: str) -> web.Response:
    REVIEWS.labels("unanswered").inc()
    log.error("a NodeMaintenance was not judged: %s", reason)
    return web.Response(status=503, text=f"{reason}\n")


def _verdict(response: Object) -> str:
    if not response["allowed"]:
        log.info("refused: %s", response["status"]["message"])
        return "refused"
    return "warned" if response.get("warnings") else "allowed"
