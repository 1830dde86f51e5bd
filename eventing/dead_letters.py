"""Dead letters: events that could not be delivered, and the Knative extensions that contain the reason.

Delivery and functions use this module to create dead letters; the journal and the redrive use it to read them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

EXTENSION_PREFIX = "knativeerror"
"""Common prefix of the names of Knative's dead letter extensions."""
DESTINATION_EXTENSION, CODE_EXTENSION, DATA_EXTENSION = (
    f"{EXTENSION_PREFIX}dest",
    f"{EXTENSION_PREFIX}code",
    f"{EXTENSION_PREFIX}data",
)
MAX_DATA_CHARACTERS = 1024
"""Maximum length of the base64-encoded data, in characters, at which Knative truncates `knativeerrordata`, too."""
MAX_STATUS_DIGITS = 3
"""Maximum number of digits in a status code, because `int()` rejects strings of several thousand digits."""


@dataclass(frozen=True)
class DeadLetter:
    """The reason why an event became a dead letter.

    Attributes:
        destination: URL of the subscriber that did not accept the event.
        code: HTTP status of the last response, 0 if unknown.
        data: Body of the last response, as text.
    """

    destination: str
    code: int
    data: str


def encode_error_data(response_body: bytes) -> str:
    """Encode a response body for `knativeerrordata`: in base64, truncated to `MAX_DATA_CHARACTERS` characters."""
    return base64.b64encode(response_body).decode()[:MAX_DATA_CHARACTERS]


def build_extensions(destination: str, code: int, data: str) -> dict[str, str]:
    """Return the extensions that Knative adds to a dead letter; `data` is base64-encoded, and omitted if empty."""
    return {DESTINATION_EXTENSION: destination, CODE_EXTENSION: str(code), **({DATA_EXTENSION: data} if data else {})}


def add_dead_letter_extensions(event: BaseCloudEvent, dead_letter: DeadLetter) -> CloudEvent:
    """Return the event with the dead letter extensions that contain the reason `dead_letter`."""
    added = build_extensions(dead_letter.destination, dead_letter.code, encode_error_data(dead_letter.data.encode()))
    return CloudEvent({**event.get_attributes(), **added}, event.get_data())


def parse_dead_letter(event: BaseCloudEvent) -> DeadLetter | None:
    """Return the reason in the event's dead letter extensions, None if it is not a dead letter."""
    destination = event.get_extension(DESTINATION_EXTENSION)
    if not destination:
        return None
    code = str(event.get_extension(CODE_EXTENSION) or "")
    is_status = code.isdecimal() and len(code) <= MAX_STATUS_DIGITS
    return DeadLetter(
        str(destination), int(code) if is_status else 0, _decode_error_data(event.get_extension(DATA_EXTENSION))
    )


def remove_dead_letter_extensions(event: BaseCloudEvent) -> CloudEvent:
    """Return the event without dead letter extensions, as it was before it became a dead letter."""
    attributes = {
        name: value for name, value in event.get_attributes().items() if not name.startswith(EXTENSION_PREFIX)
    }
    return CloudEvent(attributes, event.get_data())


def _decode_error_data(data: object) -> str:
    """Decode `knativeerrordata`; return it unchanged if it is not base64, because some brokers do not encode it."""
    text = str(data or "")
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except ValueError:  # not base64 (binascii.Error), or not ASCII
        return text
