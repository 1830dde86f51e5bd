"""The HTTP side of the functions: CloudEvent in, CloudEvent out. The routes are the list below, nothing else.

`FUNCTION=evict` serves that one alone, at `/` and `/evict`; unset serves all by path. Run by gunicorn
(`functions.app:create_app()`), by func's middleware, or by a test client.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent
from flask import Flask, Response, request
from werkzeug.exceptions import RequestEntityTooLarge

from eventing import events, logs, marks
from eventing.deadletters import DeadLetter, as_dead_letter
from eventing.journal.retention import Retention
from eventing.wire import BODY_LIMIT, BadEvent, TooLarge, received, received_or_none
from functions import record
from functions.failures import Failed, Retry
from functions.maintenance import begin, cordon, evict, guard, restore, resync, status, taint
from functions.maintenance.subject import data_of, reference_of
from functions.serving import health
from functions.serving.answers import response_of, text, told
from functions.serving.attempts import Feed, Run
from functions.serving.metrics import RESULTS, SECONDS
from functions.serving.tracing import Spans, wanted
from kube.door.cluster import Cluster
from kube.door.deadline import within
from kube.door.errors import ApiError, Conflict, Unavailable
from kube.maintenance.objects import node_name

log = logging.getLogger("functions")
SECONDS_TO_ANSWER = 1.6
"""For all requests to the API server that an event costs, so that none holds its sender for two seconds (rule 3)."""
Step = Callable[[BaseCloudEvent, Cluster], list[BaseCloudEvent]]


@dataclass(frozen=True)
class Function:
    """One step: its name is its route, its Trigger, its ServiceAccount.

    Attributes:
        run: event in, events out.
        takes: event types it acts on, () for all; others are answered with 204, so that no broker tries them again.
        gives: event types it may answer with.
    """

    name: str
    run: Step
    takes: tuple[str, ...]
    gives: tuple[str, ...]


FUNCTIONS = {
    function.name: function
    for function in (
        Function("begin", begin.begin, begin.TAKES, begin.GIVES),
        Function("cordon", cordon.cordon, cordon.TAKES, cordon.GIVES),
        Function("taint", taint.taint, taint.TAKES, taint.GIVES),
        Function("evict", evict.evict, evict.TAKES, evict.GIVES),
        Function("status", status.status, status.TAKES, status.GIVES),
        Function("restore", restore.restore, restore.TAKES, restore.GIVES),
        Function("guard", guard.guard, guard.TAKES, guard.GIVES),
        Function("resync", resync.resync, resync.TAKES, resync.GIVES),
        Function("record", record.record, record.TAKES, record.GIVES),
    )
}
KINDS = {"begin": "NodeMaintenance", "restore": "NodeMaintenance", "guard": "Node"}
"""Of API server events, these functions act on this kind only."""


def create_app(cluster: Cluster | None = None) -> Flask:
    """The Flask app on `cluster` (default: the one the environment names). Raises `SystemExit` for a wrong FUNCTION."""
    logs.configure()
    served = chosen()
    app = Flask("functions")
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    doors, feed, spans = cluster or Cluster(), Feed.of_environment(), Spans.of_environment()
    for function in served:
        app.add_url_rule(f"/{function.name}", function.name, _handler(function, doors, feed, spans), methods=["POST"])
    if len(served) == 1:
        app.add_url_rule("/", "alone", app.view_functions[served[0].name], methods=["POST"])
    health.add_pages(app, doors)
    return app


def chosen() -> list[Function]:
    """The functions that the environment asks for.

    Raises `SystemExit` for a wrong FUNCTION or retention, and for a collector of spans without the library for it.
    """
    alone = os.environ.get("FUNCTION")
    if alone and alone not in FUNCTIONS:
        raise SystemExit(f"FUNCTION={alone} is none of {', '.join(FUNCTIONS)}; unset it to serve all")
    try:
        Retention.of(os.environ)
        wanted(os.environ)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return [FUNCTIONS[alone]] if alone else list(FUNCTIONS.values())


def _handler(function: Function, cluster: Cluster, feed: Feed, spans: Spans) -> Callable[[], Response]:
    def handle() -> Response:
        started = time.perf_counter()
        headers, body = dict(request.headers), _body()
        try:
            event = _decoded(function, headers, body)
        except BadEvent as error:
            response = _refused(function, error)
            _give_up(received_or_none(headers, body), response, feed)
            return _counted(function, response, started)
        with Run(function.name, event, feed) as attempt, spans.around(attempt):
            response = answer(function, attempt, cluster, accept=request.headers.get("Accept", ""))
        if marks.is_replay(event):
            return response
        if function.takes:
            _give_up(event, response, feed)
        return _counted(function, response, started)

    return handle


def _body() -> bytes | None:
    """The request's body; None when it is larger than any honest event."""
    try:
        return request.get_data()
    except RequestEntityTooLarge:  # Flask's own limit, MAX_CONTENT_LENGTH; it would answer with a page
        return None


def _give_up(event: BaseCloudEvent | None, response: Response, feed: Feed) -> None:
    """Tell `record` of an event that was refused, as a dead letter: not every broker does.

    RabbitMQ's takes a status that it would not try again for an answer. Who tells twice tells the same.
    """
    if event is not None and 400 <= response.status_code < 500:
        letter = DeadLetter(request.url, response.status_code, response.get_data(as_text=True).strip())
        feed.give_up(as_dead_letter(event, letter))


def _counted(function: Function, response: Response, started: float) -> Response:
    """The same response, in the figures. A replay is in none: they tell what happened."""
    SECONDS.labels(function.name).observe(time.perf_counter() - started)
    RESULTS.labels(function.name, str(response.status_code)).inc()
    return response


def _decoded(function: Function, headers: dict[str, str], body: bytes | None) -> BaseCloudEvent:
    if body is None:
        raise TooLarge(f"at most {BODY_LIMIT} bytes are taken")
    # What takes every type takes any data, too: an event that no function can read is one to keep for a person.
    return received(headers, body, any_data=not function.takes)


def answer(function: Function, attempt: Run, cluster: Cluster, *, accept: str = "") -> Response:
    """Run and encode: 200 with the next event or 204; 4xx for what is no event; 503 for what may work later.

    In: the attempt that has begun on an event; it is told what came of that.
    The answers to a replay are for whoever replays: 200 with all of them as a batch if he accepts that, else 204.
    """
    with logs.every_line(**marks.of(attempt.event)):
        response = _answer(function, attempt, cluster, accept)
    attempt.status = response.status_code
    attempt.error = response.get_data(as_text=True).strip() if attempt.status >= 400 else ""
    return response


def _answer(function: Function, attempt: Run, cluster: Cluster, accept: str) -> Response:
    event = attempt.event
    try:
        with within(SECONDS_TO_ANSWER):
            attempt.replies = run(function, event, cluster.dry_run() if marks.is_dry_run(event) else cluster)
        return told(attempt.replies, accept) if marks.is_replay(event) else response_of(attempt.replies)
    except BadEvent as error:
        return _refused(function, error)
    except Retry as error:
        log.warning("retry: %s", error, extra={"fields": {"function": function.name}})
        return text(f"{error}\n", 503)


def _refused(function: Function, error: BadEvent) -> Response:
    log.warning("not an event: %s", error, extra={"fields": {"function": function.name}})
    return text(f"{error}\n", error.status)


def run(function: Function, event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Run one function on one event; what it cannot do becomes a `maintenance.failed` event.

    Raises `Retry` for what may work later, and `BadEvent`.
    """
    if not _meant_for(function, event):
        return []
    try:
        return function.run(event, cluster)
    except (Conflict, Unavailable) as error:
        raise Retry(error.message) from error
    except Failed as error:
        return _failed(function, event, str(error))
    except ApiError as error:  # the account may not, or the server refuses: trying again changes nothing
        return _failed(function, event, error.message)


def _meant_for(function: Function, event: BaseCloudEvent) -> bool:
    kind, wanted = event.get_extension("kind"), KINDS.get(function.name)
    if function.takes and event.get_type() not in function.takes:
        return False
    return not (wanted and kind and kind != wanted)


def _failed(function: Function, event: BaseCloudEvent, error: str) -> list[BaseCloudEvent]:
    """The `maintenance.failed` event. What speaks of no maintenance, or fails in `status` itself, is tried again."""
    log.error(error, extra={"fields": {"function": function.name, "event": event.get_id()}})
    data = data_of(event)
    if function.name == "status" or not ("maintenance" in data or data.get("kind") == "NodeMaintenance"):
        raise Retry(error)
    reference = reference_of(event)
    node = data.get("node") or node_name(data) or "-"
    said = {"step": function.name, "error": error}
    return [events.event(events.MAINTENANCE_FAILED, function.name, reference, node, cause=event, data=said)]
