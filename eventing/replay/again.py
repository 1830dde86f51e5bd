"""Replays a recorded event: posts it to a function again and returns what the function answers, to the caller alone.

Safe by design: functions read the live object before they write, so an old event changes nothing that is as it should
be (X-2). `differences` compares the answer with the recorded one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudevents.core.base import BaseCloudEvent

from eventing import marks
from eventing.journal.entries import Attempt, Entry, Structured
from eventing.wire import BATCH, binary
from kube.loopback import is_loopback

if TYPE_CHECKING:
    from requests import Response

SECONDS = 10.0
"""For one answer; a function takes about a second at most."""
NO_PROXY = {"http": "", "https": ""}
"""In the place of those that the environment names."""


class NoAnswer(Exception):
    """No function answers at that address; the message says which and why, in one line."""


class TooLate(NoAnswer):
    """Nobody answered in time; whoever posts there again waits as long again."""


class NoFunction(NoAnswer):
    """Who answers there is none of ours, as a broker or a login page: recorded events are nothing to it."""


@dataclass(frozen=True)
class Answer:
    """What a function answered to a replayed event; the fields are an `Attempt`'s."""

    function: str
    status: int
    seconds: float
    replies: tuple[Structured, ...] = ()
    error: str = ""


def replay(entry: Entry, function: str, url: str, *, dry_run: bool, replay_id: str = "") -> Answer:
    """Post a recorded event to a function, as part of the replay `replay_id`, and return what it answers.

    Raises `NoAnswer`. With `dry_run` nothing that the function writes is kept.
    """
    started = time.perf_counter()
    response = post(marks.marked(entry.event, replay_id or new_replay_id(), dry_run=dry_run), url, Accept=BATCH)
    return answer_of(function, response.status_code, response.headers, response.content, time.perf_counter() - started)


def post(event: BaseCloudEvent, url: str, **headers: str) -> Response:
    """Post one event in binary mode, with these headers beside its own; a redirect is an answer. Raises `NoAnswer`."""
    import requests  # a tenth of a second, for what asks a function alone

    message, started = binary(event), time.perf_counter()
    try:
        return requests.post(
            url,
            data=message.body,
            headers={**message.headers, **headers},
            timeout=SECONDS,
            proxies=NO_PROXY if is_loopback(url) else None,  # what was recorded does not leave this machine
            allow_redirects=False,  # an event goes where it is sent, and nowhere else
        )
    except requests.RequestException as error:
        if isinstance(error, requests.Timeout) or time.perf_counter() - started >= SECONDS:  # of a body that ends early
            raise TooLate(f"no answer from {url}: it takes too long") from None
        raise NoAnswer(f"no answer from {url}: it cannot be reached") from None


def answer_of(function: str, status: int, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
    """What a response says: an error, or a batch of events, which may be empty.

    Raises `NoFunction` for anything else: a function answers a replay by one of these two.
    """
    if status >= 400:
        return Answer(function, status, seconds, error=" ".join(body.decode(errors="replace").split()))
    replies = _batch(body) if headers.get("content-type", "") == BATCH else None
    if not 200 <= status < 300 or replies is None:
        kind = headers.get("content-type") or "nothing"
        raise NoFunction(f"{function} answered {status} and {kind}, not {BATCH} as each function of ours")
    return Answer(function, status, seconds, replies)


def _batch(body: bytes) -> tuple[Structured, ...] | None:
    """The events in a batch, None for what is none."""
    try:
        events = json.loads(body)
    except ValueError:
        return None
    is_batch = isinstance(events, list) and all(
        isinstance(each, dict) and isinstance(each.get("type"), str) for each in events
    )
    return tuple(events) if is_batch else None


def new_replay_id() -> str:
    """An id for one replay."""
    return str(uuid.uuid4())


def recorded(entry: Entry, function: str) -> Attempt | None:
    """What the function answered when the event was delivered: its first success, else its last failure.

    A success behind that is no answer to the event as it was then: of a second delivery, or what came of it later, as
    evictions that were granted behind the look that sent them.
    """
    attempts = [attempt for attempt in entry.attempts if attempt.function == function and not attempt.replay]
    succeeded = (attempt for attempt in attempts if not attempt.failed)
    return next(succeeded, attempts[-1] if attempts else None)
