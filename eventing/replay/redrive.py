"""Redrives dead letters: posts each to the function that did not accept it, and the function's reply to the broker.

The broker would deliver the event to all of its subscribers again. The event is therefore posted to the function
directly, as a broker would post it, and the reply is posted to the broker. `$SINK_TOKEN` contains the path of the token
file, if the broker requires a token.

A dead letter that can never succeed is discarded instead: an attempt without a delivery records who discarded it, and
when.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eventing.dead_letters import remove_dead_letter_extensions
from eventing.endpoints import build_auth_header
from eventing.http_binding import BadEvent, decode_event, encode_structured
from eventing.journal.entries import DISCARD_PREFIX, REDRIVE_PREFIX, Attempt, Entry, StructuredEvent
from eventing.replay.function_client import NoResponse, post_event

if TYPE_CHECKING:
    from requests import Response

NO_RESPONSE_STATUS = 503
"""HTTP status that is recorded for an attempt without a response."""
NO_DELIVERY_STATUS = 0
"""Status that is recorded for a discarded dead letter."""
DISCARD_NOTE = "discarded by "
"""Prefix of the text that is recorded for a discarded dead letter; the user's name follows."""
MAX_ERROR_CHARACTERS = 500
"""Maximum length, in characters, of the response text that an attempt records."""
REPLY_REJECTED_STATUS = 502
"""HTTP status that is recorded for a successful attempt whose reply the broker did not accept.

No function has then received the reply.
"""


def find_failed_function(dead_letter: Entry) -> str:
    """Return the name of the function that did not accept a dead letter, "" if it is unknown.

    The name is the last path segment of the destination, or else that of the only function whose attempts failed.
    """
    function = _parse_last_segment(dead_letter.dead_letter.destination if dead_letter.dead_letter else "")
    failed = {attempt.function for attempt in dead_letter.attempts if attempt.failed and not attempt.replay}
    return function or (failed.pop() if len(failed) == 1 else "")


def _parse_last_segment(url: str) -> str:
    """Return the last path segment of a URL; "" if the URL is invalid, because any broker may have written it."""
    try:
        return urlsplit(url).path.rstrip("/").rpartition("/")[2]
    except ValueError:
        return ""


def awaits_redrive(dead_letter: Entry) -> bool:
    """Return whether the dead letter has been neither redriven successfully nor discarded."""
    return not any(attempt.replay.startswith(REDRIVE_PREFIX) for attempt in _iter_accepted_attempts(dead_letter))


def find_discard_attempt(dead_letter: Entry) -> Attempt | None:
    """Return the attempt that records who discarded the dead letter, None if no user has discarded it."""
    discards = (
        attempt for attempt in _iter_accepted_attempts(dead_letter) if attempt.replay.startswith(DISCARD_PREFIX)
    )
    return next(discards, None)


def _iter_accepted_attempts(dead_letter: Entry) -> Iterator[Attempt]:
    """Yield the successful attempts by the dead letter's function, or by its destination if that names no function."""
    destination = dead_letter.dead_letter.destination if dead_letter.dead_letter else ""
    names = (find_failed_function(dead_letter), destination)
    return (attempt for attempt in dead_letter.attempts if attempt.function in names and not attempt.failed)


def select_dead_letters_awaiting_redrive(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield those of the entries that are dead letters and must still be redriven."""
    return (entry for entry in entries if entry.dead_letter and awaits_redrive(entry))


def build_discard_attempt(dead_letter: Entry, user: str) -> Attempt:
    """Build the attempt which records that `user` has discarded the dead letter; it then awaits no redrive."""
    event, at = dead_letter.event, datetime.now(timezone.utc)
    destination = dead_letter.dead_letter.destination if dead_letter.dead_letter else ""
    function, note = _parse_last_segment(destination) or destination, f"{DISCARD_NOTE}{user}"[:MAX_ERROR_CHARACTERS]
    replay = f"{DISCARD_PREFIX}{uuid.uuid4()}"
    return Attempt(event.get_source(), event.get_id(), function, at, 0.0, NO_DELIVERY_STATUS, error=note, replay=replay)


def redrive(dead_letter: Entry, function_url: str, broker_url: str) -> Attempt:
    """Post a dead letter to the function at `function_url`, and the function's reply to the broker.

    Returns the attempt for the journal, which is a success only if the broker accepted the reply. A missing response
    counts as a failed attempt.
    """
    event, at, started = remove_dead_letter_extensions(dead_letter.event), datetime.now(timezone.utc), perf_counter()
    try:
        status, error, replies = _publish_reply(post_event(event, function_url), broker_url)
    except NoResponse as no_response:
        status, error, replies = NO_RESPONSE_STATUS, str(no_response), ()
    source, event_id, replay = event.get_source(), event.get_id(), f"{REDRIVE_PREFIX}{uuid.uuid4()}"
    seconds = round(perf_counter() - started, 6)
    return Attempt(source, event_id, find_failed_function(dead_letter), at, seconds, status, replies, error, replay)


def _publish_reply(response: Response, broker_url: str) -> tuple[int, str, tuple[StructuredEvent, ...]]:
    """Post the function's reply to the broker if there is one; return the status, the error and the reply."""
    if response.status_code >= 400:
        return response.status_code, " ".join(response.text.split())[:MAX_ERROR_CHARACTERS], ()
    if response.status_code >= 300:
        return REPLY_REJECTED_STATUS, f"the function responded with {_format_response(response)}", ()
    if not response.content:
        return response.status_code, "", ()
    try:
        reply = decode_event(dict(response.headers), response.content)
        broker_response = post_event(reply, broker_url, **build_auth_header())
    except BadEvent as error:
        return REPLY_REJECTED_STATUS, f"the function's reply is not a CloudEvent: {error}", ()
    except NoResponse as error:
        return REPLY_REJECTED_STATUS, f"the reply did not reach the broker: {error}; redrive the dead letter again", ()
    if not 200 <= broker_response.status_code < 300:
        return REPLY_REJECTED_STATUS, f"the broker rejected the reply with {_format_response(broker_response)}", ()
    return response.status_code, "", (json.loads(encode_structured(reply).body),)


def _format_response(response: Response) -> str:
    return f"{response.status_code}: {' '.join(response.text.split())[:MAX_ERROR_CHARACTERS]}"
