"""Replays a recorded event: posts it to a function again, and returns the function's response to the caller only.

A replay is safe: functions read the live object before they write, so an old event changes nothing that is already as
desired (X-2). `differences` compares the response with the recorded one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudevents.core.base import BaseCloudEvent

from eventing import replay_extensions
from eventing.journal.entries import Attempt, Entry, Structured
from eventing.http_binding import BATCH, binary
from kube.loopback import is_loopback

if TYPE_CHECKING:
    from requests import Response

SECONDS = 10.0
"""Timeout of one request; a function takes about a second at most."""
NO_PROXY = {"http": "", "https": ""}
"""Overrides the proxies that the environment names."""


class NoAnswer(Exception):
    """No function responds at that address; the message names the address and the reason in one line."""


class TooLate(NoAnswer):
    """No response arrived in time; another request to that address would wait as long again."""


class NoFunction(NoAnswer):
    """The server at that address is not a function of this project, but for example a broker or a login page.

    It cannot process recorded events.
    """


@dataclass(frozen=True)
class Answer:
    """A function's response to a replayed event; the fields are those of an `Attempt`."""

    function: str
    status: int
    seconds: float
    replies: tuple[Structured, ...] = ()
    error: str = ""


def replay(entry: Entry, function: str, url: str, *, dry_run: bool, replay_id: str = "") -> Answer:
    """Post a recorded event to a function as part of the replay `replay_id`, and return the response.

    Raises `NoAnswer`. With `dry_run` none of the function's writes are persisted.
    """
    started = time.perf_counter()
    response = post(replay_extensions.marked(entry.event, replay_id or new_replay_id(), dry_run=dry_run), url, Accept=BATCH)
    return answer_of(function, response.status_code, response.headers, response.content, time.perf_counter() - started)


def post(event: BaseCloudEvent, url: str, **headers: str) -> Response:
    """Post one event in binary mode with additional headers, without following redirects. Raises `NoAnswer`."""
    import requests  # takes 0.1 s to import, and only requests to functions need it

    message, started = binary(event), time.perf_counter()
    try:
        return requests.post(
            url,
            data=message.body,
            headers={**message.headers, **headers},
            timeout=SECONDS,
            proxies=NO_PROXY if is_loopback(url) else None,  # recorded events must not leave this machine
            allow_redirects=False,  # an event must reach only the given URL
        )
    except requests.RequestException as error:
        if isinstance(error, requests.Timeout) or time.perf_counter() - started >= SECONDS:  # timeout in the body
            raise TooLate(f"no answer from {url}: it takes too long") from None
        raise NoAnswer(f"no answer from {url}: it cannot be reached") from None


def answer_of(function: str, status: int, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
    """Parse a response: an error, or a batch of events, which may be empty.

    Raises `NoFunction` for any other response, because a function responds to a replay with one of these two.
    """
    if status >= 400:
        return Answer(function, status, seconds, error=" ".join(body.decode(errors="replace").split()))
    replies = _batch(body) if headers.get("content-type", "") == BATCH else None
    if not 200 <= status < 300 or replies is None:
        kind = headers.get("content-type") or "nothing"
        raise NoFunction(f"{function} answered {status} and {kind}, not {BATCH} as each function of ours")
    return Answer(function, status, seconds, replies)


def _batch(body: bytes) -> tuple[Structured, ...] | None:
    """Return the events in a batch, or None if the body is not a batch."""
    try:
        events = json.loads(body)
    except ValueError:
        return None
    is_batch = isinstance(events, list) and all(
        isinstance(each, dict) and isinstance(each.get("type"), str) for each in events
    )
    return tuple(events) if is_batch else None


def new_replay_id() -> str:
    """Generate an id for one replay."""
    return str(uuid.uuid4())


def recorded(entry: Entry, function: str) -> Attempt | None:
    """Return the function's attempt at the event's delivery: its first success, or else its last failure.

    Later successes do not show how the function handled the event at that time. They come from a redelivery, or report
    late results, such as evictions that were granted after the pass that requested them had responded.
    """
    attempts = [attempt for attempt in entry.attempts if attempt.function == function and not attempt.replay]
    succeeded = (attempt for attempt in attempts if not attempt.failed)
    return next(succeeded, attempts[-1] if attempts else None)
