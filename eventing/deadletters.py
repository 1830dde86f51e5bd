"""Dead letters: events that could not be delivered, and the Knative extensions that name the reason.

For whoever dead-letters an event (delivery, functions) and whoever reads one (journal, redrive).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

PREFIX = "knativeerror"
"""What the names of all these extensions begin with."""
DESTINATION, CODE, DATA = f"{PREFIX}dest", f"{PREFIX}code", f"{PREFIX}data"
DATA_LIMIT = 1024
"""Characters of base64; Knative cuts `knativeerrordata` here."""
STATUS_DIGITS = 3
"""Python makes no number of some thousand digits."""


@dataclass(frozen=True)
class DeadLetter:
    """Why an event was dead-lettered.

    Attributes:
        destination: URL of the subscriber that did not accept it.
        code: the last HTTP status, 0 when it is not known.
        data: the body of the last response, as text.
    """

    destination: str
    code: int
    data: str


def encoded(data: bytes) -> str:
    """The body of a response as `knativeerrordata` carries it: base64, cut at `DATA_LIMIT`."""
    return base64.b64encode(data).decode()[:DATA_LIMIT]


def extensions(destination: str, code: int, data: str) -> dict[str, str]:
    """The extensions that Knative adds to a dead letter; `data` is encoded, and is left out when it is empty."""
    return {DESTINATION: destination, CODE: str(code), **({DATA: data} if data else {})}


def as_dead_letter(event: BaseCloudEvent, letter: DeadLetter) -> CloudEvent:
    """The event with the extensions that make it this dead letter."""
    added = extensions(letter.destination, letter.code, encoded(letter.data.encode()))
    return CloudEvent({**event.get_attributes(), **added}, event.get_data())


def dead_letter_of(event: BaseCloudEvent) -> DeadLetter | None:
    """Why the event was dead-lettered, None for any other event."""
    destination = event.get_extension(DESTINATION)
    if not destination:
        return None
    code = str(event.get_extension(CODE) or "")
    known = code.isdecimal() and len(code) <= STATUS_DIGITS
    return DeadLetter(str(destination), int(code) if known else 0, _decoded(event.get_extension(DATA)))


def original(event: BaseCloudEvent) -> CloudEvent:
    """The event as it was before it became a dead letter."""
    attributes = {name: value for name, value in event.get_attributes().items() if not name.startswith(PREFIX)}
    return CloudEvent(attributes, event.get_data())


def _decoded(data: object) -> str:
    """The text in `knativeerrordata`; another broker's that is no base64 is returned as it is."""
    text = str(data or "")
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except ValueError:  # binascii's of what is no base64, the plain one of what is no ASCII
        return text
