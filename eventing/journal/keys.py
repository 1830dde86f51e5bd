"""What events and attempts are looked up by, and how long it may be. Pure."""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing.deadletters import dead_letter_of
from eventing.journal.entries import Attempt
from eventing.wire import BadEvent

LONGEST_KEY = 512
"""Bytes of what names an event: PostgreSQL takes no row of an index over 2,700. Characters of what it is found by."""


def event_keys(event: BaseCloudEvent) -> dict[str, str]:
    """Source and id of an event, and its destination, of a dead letter; else that is "".

    Raises `BadEvent` for one that is too long to be looked up.
    """
    dead = dead_letter_of(event)
    return _checked(source=event.get_source(), id=event.get_id(), destination=dead.destination if dead else "")


def attempt_keys(attempt: Attempt) -> dict[str, str]:
    """Source and id of its event, function and replay of an attempt. Raises `BadEvent` as `event_keys` does."""
    return _checked(source=attempt.source, event=attempt.event, function=attempt.function, replay=attempt.replay)


def _checked(**keys: str) -> dict[str, str]:
    for name, text in keys.items():
        if len(text.encode(errors="replace")) > LONGEST_KEY:
            raise BadEvent(f"{name} is over {LONGEST_KEY} bytes")
    return keys
