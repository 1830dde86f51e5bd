"""The keys by which events and attempts are found in the journal, and their maximum length. No I/O."""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing.dead_letters import dead_letter_of
from eventing.journal.entries import Attempt
from eventing.http_binding import BadEvent

LONGEST_KEY = 512
"""Maximum bytes of each key of an event or attempt; a PostgreSQL index row holds at most 2,700 bytes.

The other indexed columns are truncated to this number of characters.
"""


def event_keys(event: BaseCloudEvent) -> dict[str, str]:
    """Return an event's source and id, and the destination of a dead letter ("" for other events).

    Raises `BadEvent` if a key is too long for the index.
    """
    dead = dead_letter_of(event)
    return _checked(source=event.get_source(), id=event.get_id(), destination=dead.destination if dead else "")


def attempt_keys(attempt: Attempt) -> dict[str, str]:
    """Return an attempt's function and replay, and its event's source and id. Raises `BadEvent` like `event_keys`."""
    return _checked(source=attempt.source, event=attempt.event, function=attempt.function, replay=attempt.replay)


def _checked(**keys: str) -> dict[str, str]:
    for name, text in keys.items():
        if len(text.encode(errors="replace")) > LONGEST_KEY:
            raise BadEvent(f"{name} is over {LONGEST_KEY} bytes")
    return keys
