"""Replays a recorded event: posts it to a function again, and returns the function's response only to the caller.

A replay is safe: functions read the current object before they write, so an old event does not change objects that are
already in the desired state (X-2). `response_diff` compares the response with the recorded one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudevents.core.base import BaseCloudEvent

from eventing import extensions
from eventing.http_binding import BATCH_CONTENT_TYPE, encode_binary
from eventing.journal.entries import Attempt, Entry, StructuredEvent
from kube.loopback import is_loopback_url

if TYPE_CHECKING:
    from requests import Response

TIMEOUT_SECONDS = 10.0
"""Timeout of a replay request; a function takes at most about a second."""
NO_PROXIES = {"http": "", "https": ""}
"""Proxy setting for `requests` that overrides the proxies from the environment."""


class NoResponse(Exception):
    """Error if no function responds at a URL; the message contains the reason in one line.

    Either no response arrived, or it is from another server, for example a broker or a login page.
    """


@dataclass(frozen=True)
class FunctionResponse:
    """A function's response to a replayed event, with fields like those of an `Attempt`.

    `seconds` includes the transfer over the network; None if no function responded.
    """

    function: str
    status: int
    seconds: float | None
    replies: tuple[StructuredEvent, ...] = ()
    error: str = ""


def replay_event(entry: Entry, function: str, url: str, *, dry_run: bool, replay_id: str = "") -> FunctionResponse:
    """Post a recorded event to a function as part of the replay `replay_id`, and return the response.

    Raises `NoResponse`. With `dry_run`, none of the function's writes are stored.
    """
    started = time.perf_counter()
    response = post_event(
        extensions.add_replay_extensions(entry.event, replay_id or create_replay_id(), dry_run=dry_run),
        url,
        Accept=BATCH_CONTENT_TYPE,
    )
    return parse_response(
        function, response.status_code, response.headers, response.content, time.perf_counter() - started
    )


def post_event(event: BaseCloudEvent, url: str, **headers: str) -> Response:
    """Post an event in binary mode, with additional headers and without following redirects. Raises `NoResponse`."""
    import requests  # imported here because the import takes 0.1 s, and only requests to functions need it

    message, started = encode_binary(event), time.perf_counter()
    try:
        return requests.post(
            url,
            data=message.body,
            headers={**message.headers, **headers},
            timeout=TIMEOUT_SECONDS,
            proxies=NO_PROXIES if is_loopback_url(url) else None,  # recorded events must not leave this machine
            allow_redirects=False,  # the event must reach only the given URL
        )
    except requests.RequestException as error:
        # A timeout while reading the body raises a different exception than `Timeout`.
        is_body_timeout = time.perf_counter() - started >= TIMEOUT_SECONDS
        if isinstance(error, requests.Timeout) or is_body_timeout:
            raise NoResponse(f"no response from {url} within {TIMEOUT_SECONDS:g} s") from None
        raise NoResponse(f"no response from {url}: the connection failed") from None


def parse_response(
    function: str, status: int, headers: Mapping[str, str], body: bytes, seconds: float
) -> FunctionResponse:
    """Parse a function's response to a replay: an error, or a batch of events, which may be empty.

    Raises `NoResponse` for any other response.
    """
    if status >= 400:
        return FunctionResponse(function, status, seconds, error=" ".join(body.decode(errors="replace").split()))
    replies = _parse_batch(body) if headers.get("content-type", "") == BATCH_CONTENT_TYPE else None
    if not 200 <= status < 300 or replies is None:
        content_type = headers.get("content-type") or "no content type"
        raise NoResponse(
            f"{function} responded with {status} and {content_type}: "
            f"a function of this product responds with {BATCH_CONTENT_TYPE}"
        )
    return FunctionResponse(function, status, seconds, replies)


def _parse_batch(body: bytes) -> tuple[StructuredEvent, ...] | None:
    """Parse a batch of events; return None if the body is not a batch."""
    try:
        events = json.loads(body)
    except ValueError:
        return None
    is_batch = isinstance(events, list) and all(
        isinstance(event, dict) and isinstance(event.get("type"), str) for event in events
    )
    return tuple(events) if is_batch else None


def create_replay_id() -> str:
    """Generate a unique id for a replay."""
    return str(uuid.uuid4())


def find_recorded_attempt(entry: Entry, function: str) -> Attempt | None:
    """Return the function's recorded attempt for the event: its first success, else its last failure.

    Later successes do not show how the function originally handled the event. They come from a redelivery, or report
    late results, such as evictions that were granted after their pass had responded.
    """
    attempts = [attempt for attempt in entry.attempts if attempt.function == function and not attempt.replay]
    succeeded = (attempt for attempt in attempts if not attempt.failed)
    return next(succeeded, attempts[-1] if attempts else None)
