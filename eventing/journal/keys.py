"""The keys by which events and attempts are found in the journal, and their maximum length. No I/O."""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing.dead_letters import parse_dead_letter
from eventing.http_binding import BadEvent
from eventing.journal.entries import Attempt

MAX_KEY_BYTES = 512
"""Maximum size of each key of an event or attempt, in bytes; a PostgreSQL index row has at most 2,700 bytes.

The other indexed columns are truncated to this number of characters.
"""


def get_event_keys(event: BaseCloudEvent) -> dict[str, str]:
    """Return an event's source and id, and the destination of a dead letter ("" for other events).

    Raises `BadEvent` if a key is too long for the index.
    """
    dead = parse_dead_letter(event)
    return _check_lengths(source=event.get_source(), id=event.get_id(), destination=dead.destination if dead else "")


def get_attempt_keys(attempt: Attempt) -> dict[str, str]:
    """Return an attempt's function and replay, and its event's source and id.

    Raises `BadEvent` if a key is too long for the index.
    """
    return _check_lengths(source=attempt.source, event=attempt.event, function=attempt.function, replay=attempt.replay)


def _check_lengths(**keys: str) -> dict[str, str]:
    for name, text in keys.items():
        if len(text.encode(errors="replace")) > MAX_KEY_BYTES:
            raise BadEvent(f"{name} is longer than {MAX_KEY_BYTES} bytes")
    return keys
