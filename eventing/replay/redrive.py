"""Redrives dead letters: delivers each again to the function that did not accept it, and its reply to the broker.

The broker would deliver the event to all its subscribers again. The event is therefore posted to the function directly,
as a broker would post it, and the function's reply is posted to the broker. `$SINK_TOKEN` names the file with the
token, if the broker requires one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eventing.dead_letters import original
from eventing.journal.entries import REDRIVE, Attempt, Entry, Structured
from eventing.replay.function_client import NoAnswer, post
from eventing.sinks import identity
from eventing.http_binding import BadEvent, received, structured

if TYPE_CHECKING:
    from requests import Response

NOBODY_THERE = 503
"""Status of an attempt without a response."""
SAID = 500
"""Maximum characters of a response that an attempt keeps."""
REPLY_NOT_ACCEPTED = 502
"""Status of an attempt that succeeded, but whose reply the broker did not accept.

The chain of events has not continued.
"""


def function_of(letter: Entry) -> str:
    """Return the function that did not accept a dead letter, "" if it is unknown.

    It is the last path segment of the destination, or else the only function whose attempts failed.
    """
    named = _last_word(letter.dead_letter.destination if letter.dead_letter else "")
    failed = {attempt.function for attempt in letter.attempts if attempt.failed and not attempt.replay}
    return named or (failed.pop() if len(failed) == 1 else "")


def _last_word(url: str) -> str:
    """Return the last path segment of a URL; return "" if it is invalid, as another broker may have written it."""
    try:
        return urlsplit(url).path.rstrip("/").rpartition("/")[2]
    except ValueError:
        return ""


def is_open(letter: Entry) -> bool:
    """Return whether the dead letter has not been redriven successfully yet."""
    function = function_of(letter)
    return not any(
        attempt.replay.startswith(REDRIVE) and attempt.function == function and not attempt.failed
        for attempt in letter.attempts
    )


def still_open(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Return an iterator over the dead letters among the entries that still have to be redriven."""
    return (entry for entry in entries if entry.dead_letter and is_open(entry))


def redrive(letter: Entry, url: str, broker: str) -> Attempt:
    """Deliver a dead letter to the function at `url`, and its reply to the broker.

    Returns the attempt for the journal, which is a success only if the broker accepted the reply. A missing response is
    a failed attempt like any other.
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
    """Post the function's reply, if there is one, to the broker; return status, error and the reply."""
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
