"""Builds a function's HTTP responses: one event, a batch of events for a replay, or a line of text.

If a function returns several events, they are published to the broker instead.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

from cloudevents.core.base import BaseCloudEvent
from flask import Response

from eventing.endpoints import build_auth_header, create_ssl_context
from eventing.http_binding import BATCH_CONTENT_TYPE, encode_batch, encode_binary
from functions.failures import Retry

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter

MAX_LINE_CHARACTERS = 2000
"""Maximum length of a text response, in characters."""
PUBLISH_TIMEOUT_SECONDS = 2.0
"""Timeout for publishing all replies to one event.

Together with the step's deadline, it is shorter than the broker's timeout. Otherwise the broker would redeliver the
event while its replies are still being published.
"""


def build_replay_response(replies: list[BaseCloudEvent], accept_header: str) -> Response:
    """Return the response to a replay: 200 with a batch of all replies if `accept_header` allows batches, else 204."""
    if BATCH_CONTENT_TYPE not in accept_header:
        return Response(status=204)
    message = encode_batch(replies)
    return Response(message.body, 200, message.headers)


def build_response(replies: list[BaseCloudEvent]) -> Response:
    """Return the response with the reply event, or 204 if there is none; publish several replies to `$K_SINK` instead.

    A broker accepts only one event per response. Raises `Retry` if the broker does not accept a published event. If the
    broker rejects an event, the function still publishes the remaining events.
    """
    if not replies:
        return Response(status=204)
    if len(replies) > 1:
        _publish_replies(replies)
        return Response(status=204)
    message = encode_binary(replies[0])
    return Response(message.body, 200, message.headers)


def _publish_replies(replies: list[BaseCloudEvent]) -> None:
    import requests  # This import is deferred because it would delay the function's start by 0.1 s.

    sink = os.environ.get("K_SINK")
    if not sink:
        raise Retry("cannot publish several events: K_SINK is not set: bind this function to the broker")
    with requests.Session() as session:  # The session reuses one connection for all events.
        if sink.startswith("https:"):
            session.mount("https://", _build_https_adapter())
        session.headers.update(build_auth_header())
        deadline, failure = time.monotonic() + PUBLISH_TIMEOUT_SECONDS, None
        # No receiver relies on the order. With a random order, a timeout does not affect the same events each time.
        for reply in random.sample(replies, len(replies)):
            seconds_left = max(0.01, deadline - time.monotonic())
            message = encode_binary(reply)
            try:
                session.post(sink, message.body, headers=message.headers, timeout=seconds_left).raise_for_status()
            except requests.RequestException as error:
                failure = Retry(f"the broker at K_SINK did not accept an event: {error}")
                if error.response is None or error.response.status_code >= 500:  # Further requests would fail as well.
                    break
    if failure:
        raise failure


def _build_https_adapter() -> HTTPAdapter:
    """Return an HTTP adapter that trusts Knative's own CA, which issues the broker's certificate."""
    from requests.adapters import HTTPAdapter

    class KnativeCaAdapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **settings: Any) -> None:
            super().init_poolmanager(*args, **settings, ssl_context=create_ssl_context())

    return KnativeCaAdapter()


def build_text_response(text: str, status: int) -> Response:
    """Return a text response with at most one line of `MAX_LINE_CHARACTERS`, because `text` may quote the request."""
    line = " ".join(text.split())
    line = line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]} ..."
    return Response(f"{line}\n", status, mimetype="text/plain")
