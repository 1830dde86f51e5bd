"""Redrives dead letters: delivers each again to the function that did not accept it, and its reply to the broker.

Through the broker the event would go to all functions that it has reached already. So it is posted to the function
itself, as the broker would, and what the function answers is posted to the broker, with the token that `$SINK_TOKEN`
names where that asks for one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eventing.deadletters import original
from eventing.journal.entries import REDRIVE, Attempt, Entry, Structured
from eventing.replay.again import NoAnswer, post
from eventing.sinks import identity
from eventing.wire import BadEvent, received, structured

if TYPE_CHECKING:
    from requests import Response

NOBODY_THERE = 503
"""The status of an attempt that got no answer."""
SAID = 500
"""Characters of an answer that an attempt keeps."""
REPLY_NOT_ACCEPTED = 502
"""The status of an attempt that worked and whose reply the broker did not accept: the chain has not gone on."""


def function_of(letter: Entry) -> str:
    """The function that did not accept a dead letter, "" when it is not known: the last word of the destination's path,
    or the only function whose attempts failed."""
    named = _last_word(letter.dead_letter.destination if letter.dead_letter else "")
    failed = {attempt.function for attempt in letter.attempts if attempt.failed and not attempt.replay}
    return named or (failed.pop() if len(failed) == 1 else "")


def _last_word(url: str) -> str:
    """Of the path of an address, which another broker may have written; "" for what is none."""
    try:
        return urlsplit(url).path.rstrip("/").rpartition("/")[2]
    except ValueError:
        return ""


def is_open(letter: Entry) -> bool:
    """Whether nobody has redriven it with success."""
    function = function_of(letter)
    return not any(
        attempt.replay.startswith(REDRIVE) and attempt.function == function and not attempt.failed
        for attempt in letter.attempts
    )


def still_open(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The dead letters among the entries that wait to be redriven, in their order, one after another."""
    return (entry for entry in entries if entry.dead_letter and is_open(entry))


def redrive(letter: Entry, url: str, broker: str) -> Attempt:
    """Deliver a dead letter to the function at `url`, and its answer to the broker.

    Returns the attempt, for the journal: a success only when the broker accepted the reply. Nobody there is a failed
    attempt like any other.
    """
    event, at, started = original(letter.event), datetime.now(timezone.utc), perf_counter()
    try:
        status, error, replies = _publish_reply(post(event, url), broker)
    except NoAnswer as nobody:
        status, error, replies = NOBODY_THERE, str(nobody), ()
    source, key, replay = event.get_source(), event.get_id(), f"{REDRIVE}{uuid.uuid4()}"
    seconds = round(perf_counter() - started, 6)
    return Attempt(source, key, function_of(letter), at, seconds, status, replies, error, replay)


def _publish_reply(response: Response, broker: str) -> tuple[int, str, tuple[Structured, ...]]:
    """Publish the function's reply, if any, to the broker; returns status, error and the reply."""
    if response.status_code >= 400:
        return response.status_code, " ".join(response.text.split())[:SAID], ()
    if response.status_code >= 300:
        return REPLY_NOT_ACCEPTED, f"it answered {_said(response)}", ()
    if not response.content:
        return response.status_code, "", ()
    try:
        answer = received(dict(response.headers), response.content)
        accepted = post(answer, broker, **identity())
    except BadEvent as error:
        return REPLY_NOT_ACCEPTED, f"its answer is no event: {error}", ()
    except NoAnswer as error:
        return REPLY_NOT_ACCEPTED, f"its answer got nowhere, redrive it again: {error}", ()
    if not 200 <= accepted.status_code < 300:
        return REPLY_NOT_ACCEPTED, f"the broker refused its answer, {_said(accepted)}", ()
    return response.status_code, "", (json.loads(structured(answer).body),)


def _said(response: Response) -> str:
    return f"{response.status_code}: {' '.join(response.text.split())[:SAID]}"
