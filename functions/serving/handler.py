"""Handles requests to a function: decodes the event, runs the step, encodes the response, and publishes the attempt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from cloudevents.core.base import BaseCloudEvent
from flask import Response, request
from prometheus_client import Counter, Histogram
from werkzeug.exceptions import RequestEntityTooLarge

from eventing import extensions, logs
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.http_binding import MAX_BODY_BYTES, BadEvent, EventTooLarge, decode_event, decode_event_or_none
from eventing.signatures import sign_event
from functions.failures import Retry
from functions.serving.attempts import OngoingAttempt, Publisher
from functions.serving.function_runner import FunctionRunner
from functions.serving.responses import build_replay_response, build_response, build_text_response
from functions.serving.tracing import AttemptTracer
from functions.steps import Function
from kube.client.deadline import set_deadline
from kube.client.sync_client import SyncClient

log = logging.getLogger("functions")
API_DEADLINE_SECONDS = 1.6
"""Deadline for all API requests of one event, so that the function responds within two seconds (design rule 3)."""
DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the histogram buckets in seconds; no function should take longer than two seconds."""
FUNCTION_SECONDS = Histogram(
    "nodemaintenance_function_seconds", "Time for one event in a function", ["function"], buckets=DURATION_BUCKETS
)
FUNCTION_EVENTS = Counter(
    "nodemaintenance_function_events_total", "Events by function and HTTP status", ["function", "status"]
)


def build_view(
    function: Function, client: SyncClient, publisher: Publisher, tracer: AttemptTracer
) -> Callable[[], Response]:
    """Build the Flask view function that serves a function of this project."""
    runner = FunctionRunner(function)
    if function.late_replies:
        function.late_replies.set_publisher(partial(_publish_late_replies, function.name, publisher))
        publisher.on_close(function.late_replies.close)

    def handle_request() -> Response:
        started = time.perf_counter()
        headers, body = dict(request.headers), _read_body()
        if body is not None and len(body) < (request.content_length or 0):
            # The sender or a proxy has aborted the request. Without this check, `record` would store a truncated event.
            response = build_text_response("the body is incomplete: send the event again", 503)
            return _count_response(function, response, started)
        try:
            event = _decode_event(function, headers, body)
        except BadEvent as error:
            response = _reject_event(function, error)
            _publish_dead_letter(decode_event_or_none(headers, body), response, publisher)
            return _count_response(function, response, started)
        with OngoingAttempt(function.name, event, publisher) as attempt, tracer.trace_attempt(attempt):
            response = handle_event(runner, attempt, client, accept_header=request.headers.get("Accept", ""))
        if extensions.is_replay(event):
            return response
        if function.consumes:
            _publish_dead_letter(event, response, publisher)
        return _count_response(function, response, started)

    return handle_request


def _publish_late_replies(
    function_name: str, publisher: Publisher, event: BaseCloudEvent, replies: list[BaseCloudEvent]
) -> None:
    """Publish replies that the function produced after its response, as another attempt for the same event."""
    with OngoingAttempt(function_name, event, publisher) as attempt:
        attempt.replies, attempt.status = [sign_event(reply) for reply in replies], 200


def _read_body() -> bytes | None:
    """Return the request body, or None if it exceeds the maximum size of an event."""
    try:
        return request.get_data()
    except RequestEntityTooLarge:  # Above MAX_CONTENT_LENGTH, Flask would respond with an HTML page.
        return None


def _decode_event(function: Function, headers: dict[str, str], body: bytes | None) -> BaseCloudEvent:
    if body is None:
        raise EventTooLarge(f"body is too large: the limit is {MAX_BODY_BYTES} bytes")
    # `record`, which consumes all types, also stores events with invalid data, so that administrators can inspect them.
    return decode_event(headers, body, any_data=not function.consumes)


def _publish_dead_letter(event: BaseCloudEvent | None, response: Response, publisher: Publisher) -> None:
    """Publish a rejected event as a dead letter, because not every broker dead-letters events after a 4xx response.

    For example, Knative's RabbitMQ broker treats a status that it does not retry as success. If the broker publishes
    the same dead letter, `record` stores it only once.
    """
    if event is not None and 400 <= response.status_code < 500:
        dead_letter = DeadLetter(request.url, response.status_code, response.get_data(as_text=True).strip())
        publisher.add_dead_letter(add_dead_letter_extensions(event, dead_letter))


def _count_response(function: Function, response: Response, started: float) -> Response:
    """Count the response in the metrics, and return it.

    The caller skips this function for replays, so that the metrics contain only original events.
    """
    FUNCTION_SECONDS.labels(function.name).observe(time.perf_counter() - started)
    FUNCTION_EVENTS.labels(function.name, str(response.status_code)).inc()
    return response


def handle_event(
    runner: FunctionRunner, attempt: OngoingAttempt, client: SyncClient, *, accept_header: str = ""
) -> Response:
    """Run the step for the attempt's event, and return the response: 200 with the reply event, 204, 4xx or 503.

    Sets the outcome of `attempt`. The response is 204 without a reply event, 4xx for an invalid event, and 503 if the
    broker must retry. For a replay, the response is a batch of all replies if `accept_header` includes the content type
    of a batch, else 204. The replies of a dry run are not signed, because they describe changes that were not made, and
    any client could remove their dry-run extension attributes.
    """
    with logs.bind_fields(**extensions.get_replay_extensions(attempt.event)):
        response = _invoke_and_encode(runner, attempt, client, accept_header)
    attempt.status, attempt.response_bytes = response.status_code, response.calculate_content_length() or 0
    attempt.error = response.get_data(as_text=True).strip() if attempt.status >= 400 else ""
    return response


def _invoke_and_encode(
    runner: FunctionRunner, attempt: OngoingAttempt, client: SyncClient, accept_header: str
) -> Response:
    event = attempt.event
    try:
        with set_deadline(API_DEADLINE_SECONDS):
            replies = runner.invoke(event, client.with_dry_run() if extensions.is_dry_run(event) else client)
        attempt.replies = replies if extensions.is_dry_run(event) else [sign_event(reply) for reply in replies]
        return (
            build_replay_response(attempt.replies, accept_header)
            if extensions.is_replay(event)
            else build_response(attempt.replies)
        )
    except BadEvent as error:
        return _reject_event(runner.function, error)
    except Retry as error:
        log.warning("the event must be retried: %s", error, extra={"fields": {"function": runner.function.name}})
        return build_text_response(f"{error}\n", 503)


def _reject_event(function: Function, error: BadEvent) -> Response:
    log.warning("rejected an event: %s", error, extra={"fields": {"function": function.name}})
    return build_text_response(f"{error}\n", error.status)
