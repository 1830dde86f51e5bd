"""What a function answers over HTTP: the next event, all of them to whoever replays, or a line of text."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

from cloudevents.core.base import BaseCloudEvent
from flask import Response

from eventing.sinks import identity, trust
from eventing.wire import BATCH, batch, binary
from functions.failures import Retry

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter

LONGEST = 2000
"""Characters of a line."""
PUBLISH_SECONDS = 2.0
"""For all events of an answer: with those for the look, less than the broker waits, which would send the event anew
while the first answer is still being published."""


def replay_response(replies: list[BaseCloudEvent], accept: str) -> Response:
    """The answer to a replay: 200 with all events as a batch if `accept` takes one, else 204."""
    if BATCH not in accept:
        return Response(status=204)
    message = batch(replies)
    return Response(message.body, 200, message.headers)


def response_of(replies: list[BaseCloudEvent]) -> Response:
    """One event is the reply; a broker takes no more in one answer, so several are published to `$K_SINK`.

    Raises `Retry` when the broker does not accept one; an event that it refuses holds back none of the others.
    """
    if not replies:
        return Response(status=204)
    if len(replies) > 1:
        _publish(replies)
        return Response(status=204)
    message = binary(replies[0])
    return Response(message.body, 200, message.headers)


def _publish(replies: list[BaseCloudEvent]) -> None:
    import requests  # a tenth of a second that no start of a function should wait for

    sink = os.environ.get("K_SINK")
    if not sink:
        raise Retry("several events to publish and K_SINK is not set: bind this function to the broker")
    with requests.Session() as session:  # hundreds may go out after an outage: on one connection
        if sink.startswith("https:"):
            session.mount("https://", _trusting())
        session.headers.update(identity())
        ends, failure = time.monotonic() + PUBLISH_SECONDS, None
        # In another order each time, which means nothing: for what comes last there may be no time.
        for reply in random.sample(replies, len(replies)):
            left = max(0.01, ends - time.monotonic())
            message = binary(reply)
            try:
                session.post(sink, message.body, headers=message.headers, timeout=left).raise_for_status()
            except requests.RequestException as error:
                failure = Retry(f"the broker at K_SINK accepted no event: {error}")
                if error.response is None or error.response.status_code >= 500:  # nor will it accept the next one
                    break
    if failure:
        raise failure


def _trusting() -> HTTPAdapter:
    """What speaks to a sink whose certificate is of Knative's own authority."""
    from requests.adapters import HTTPAdapter

    class Trusting(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **settings: Any) -> None:
            super().init_poolmanager(*args, **settings, ssl_context=trust())

    return Trusting()


def text(text: str, code: int) -> Response:
    """A line for people. It may quote what was sent, and so is one line all the same, and has an end."""
    line = " ".join(text.split())
    line = line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
    return Response(f"{line}\n", code, mimetype="text/plain")
