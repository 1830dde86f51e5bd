"""Handles requests to a function: decodes the event, runs the step, encodes the response, and publishes the attempt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from cloudevents.core.base import BaseCloudEvent
from flask import Response, request
from werkzeug.exceptions import RequestEntityTooLarge

from eventing import logs, replay_extensions
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.signatures import signed
from eventing.http_binding import BODY_LIMIT, BadEvent, TooLarge, received, received_or_none
from functions.failures import Retry
from functions.serving.responses import replay_response, response_of, text
from functions.serving.attempts import OngoingAttempt, Publisher
from functions.serving.function import Function, invoke
from functions.serving.metrics import RESULTS, SECONDS
from functions.serving.tracing import Spans
from kube.client.deadline import within
from kube.client.sync_client import Cluster

log = logging.getLogger("functions")
SECONDS_TO_ANSWER = 1.6
"""Time limit for all API requests of one event.

It ensures that no sender has to wait for two seconds (rule 3).
"""


def handler(function: Function, cluster: Cluster, publisher: Publisher, spans: Spans) -> Callable[[], Response]:
    """Build the Flask view of a function."""
    if function.late:
        function.late.publish_by(partial(_publish_late, function.name, publisher))
        publisher.before_end(function.late.close)

    def handle() -> Response:
        started = time.perf_counter()
        headers, body = dict(request.headers), _body()
        try:
            event = _decoded(function, headers, body)
        except BadEvent as error:
            response = _refused(function, error)
            _dead_letter(received_or_none(headers, body), response, publisher)
            return _counted(function, response, started)
        with OngoingAttempt(function.name, event, publisher) as attempt, spans.around(attempt):
            response = answer(function, attempt, cluster, accept=request.headers.get("Accept", ""))
        if replay_extensions.is_replay(event):
            return response
        if function.consumes:
            _dead_letter(event, response, publisher)
        return _counted(function, response, started)

    return handle


def _publish_late(function: str, publisher: Publisher, event: BaseCloudEvent, replies: list[BaseCloudEvent]) -> None:
    """Publish the replies that an execution on this event produced after its response."""
    with OngoingAttempt(function, event, publisher) as attempt:
        attempt.replies, attempt.status = [signed(reply) for reply in replies], 200


def _body() -> bytes | None:
    """Return the request's body, or None if it is larger than any valid event."""
    try:
        return request.get_data()
    except RequestEntityTooLarge:  # Flask's limit MAX_CONTENT_LENGTH; its own response would be an HTML page
        return None


def _decoded(function: Function, headers: dict[str, str], body: bytes | None) -> BaseCloudEvent:
    if body is None:
        raise TooLarge(f"at most {BODY_LIMIT} bytes are taken")
    # A function that consumes every type accepts any data: unreadable events are kept for the administrator.
    return received(headers, body, any_data=not function.consumes)


def _dead_letter(event: BaseCloudEvent | None, response: Response, publisher: Publisher) -> None:
    """Publish a rejected event as a dead letter, because not every broker does.

    RabbitMQ's broker treats a status that it does not retry as success. A dead letter that is published twice is
    recorded once.
    """
    if event is not None and 400 <= response.status_code < 500:
        letter = DeadLetter(request.url, response.status_code, response.get_data(as_text=True).strip())
        publisher.add_dead_letter(as_dead_letter(event, letter))


def _counted(function: Function, response: Response, started: float) -> Response:
    """Count the response in the metrics, and return it.

    Replays are not counted, because metrics show what really happened.
    """
    SECONDS.labels(function.name).observe(time.perf_counter() - started)
    RESULTS.labels(function.name, str(response.status_code)).inc()
    return response


def answer(function: Function, attempt: OngoingAttempt, cluster: Cluster, *, accept: str = "") -> Response:
    """Run the step and encode the response: 200 with the next event, or 204; 4xx for an invalid event; 503 for a retry.

    In: the attempt that has begun on an event; the function sets its outcome.
    The replies to a replay go to its sender: 200 with all of them as a batch if `accept` includes that type, else 204.
    The replies of a dry run are not signed: they describe changes that were not made, and any client could remove the
    mark.
    """
    with logs.every_line(**replay_extensions.of(attempt.event)):
        response = _answer(function, attempt, cluster, accept)
    attempt.status, attempt.answered = response.status_code, response.calculate_content_length() or 0
    attempt.error = response.get_data(as_text=True).strip() if attempt.status >= 400 else ""
    return response


def _answer(function: Function, attempt: OngoingAttempt, cluster: Cluster, accept: str) -> Response:
    event = attempt.event
    try:
        with within(SECONDS_TO_ANSWER):
            replies = invoke(function, event, cluster.dry_run() if replay_extensions.is_dry_run(event) else cluster)
        attempt.replies = replies if replay_extensions.is_dry_run(event) else [signed(reply) for reply in replies]
        return replay_response(attempt.replies, accept) if replay_extensions.is_replay(event) else response_of(attempt.replies)
    except BadEvent as error:
        return _refused(function, error)
    except Retry as error:
        log.warning("retry: %s", error, extra={"fields": {"function": function.name}})
        return text(f"{error}\n", 503)


def _refused(function: Function, error: BadEvent) -> Response:
    log.warning("not an event: %s", error, extra={"fields": {"function": function.name}})
    return text(f"{error}\n", error.status)
