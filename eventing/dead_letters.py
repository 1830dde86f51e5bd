"""Dead letters: events that could not be delivered, and the Knative extensions that carry the reason.

Used by the code that dead-letters an event (delivery, functions) and by the code that reads dead letters (journal,
redrive).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

PREFIX = "knativeerror"
"""Common prefix of the dead letter extensions' names."""
DESTINATION, CODE, DATA = f"{PREFIX}dest", f"{PREFIX}code", f"{PREFIX}data"
DATA_LIMIT = 1024
"""Maximum length in base64 characters; Knative truncates `knativeerrordata` at the same length."""
STATUS_DIGITS = 3
"""Maximum number of digits in a status code; `int()` rejects strings of several thousand digits."""


@dataclass(frozen=True)
class DeadLetter:
    """The reason why an event was dead-lettered.

    Attributes:
        destination: URL of the subscriber that did not accept the event.
        code: The last HTTP status, 0 if unknown.
        data: The body of the last response, as text.
    """

    destination: str
    code: int
    data: str


def encoded(data: bytes) -> str:
    """Encode a response body for `knativeerrordata`: base64, truncated to `DATA_LIMIT` characters."""
    return base64.b64encode(data).decode()[:DATA_LIMIT]


def extensions(destination: str, code: int, data: str) -> dict[str, str]:
    """Return the extensions that Knative adds to a dead letter; `data` is base64 and is omitted if empty."""
    return {DESTINATION: destination, CODE: str(code), **({DATA: data} if data else {})}


def as_dead_letter(event: BaseCloudEvent, letter: DeadLetter) -> CloudEvent:
    """Return the event with the extensions of this dead letter."""
    added = extensions(letter.destination, letter.code, encoded(letter.data.encode()))
    return CloudEvent({**event.get_attributes(), **added}, event.get_data())


def dead_letter_of(event: BaseCloudEvent) -> DeadLetter | None:
    """Return why the event was dead-lettered, or None if it is not a dead letter."""
    destination = event.get_extension(DESTINATION)
    if not destination:
        return None
    code = str(event.get_extension(CODE) or "")
    known = code.isdecimal() and len(code) <= STATUS_DIGITS
    return DeadLetter(str(destination), int(code) if known else 0, _decoded(event.get_extension(DATA)))


def original(event: BaseCloudEvent) -> CloudEvent:
    """Return the event without its dead letter extensions."""
    attributes = {name: value for name, value in event.get_attributes().items() if not name.startswith(PREFIX)}
    return CloudEvent(attributes, event.get_data())


def _decoded(data: object) -> str:
    """Decode `knativeerrordata`; return it unchanged if it is not base64, as from some other brokers."""
    text = str(data or "")
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except ValueError:  # binascii.Error if the text is not base64, a plain ValueError if it is not ASCII
        return text
