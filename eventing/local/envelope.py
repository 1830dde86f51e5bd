"""An accepted event as HTTP headers and body, ready to be posted; it is parsed only once, at the ingress."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from cloudevents.core.base import BaseCloudEvent

from eventing import http_binding, trace_context

CONTENT_TYPE = "content-type"
TRACE_EXTENSION = trace_context.TRACEPARENT_EXTENSION
HEADER_NAME_PATTERN = re.compile(r"[a-z0-9-]+")
MAX_VALUE_CHARACTERS, MAX_HEADERS = 8000, 64
"""Maximum length of a header value in characters, and maximum number of headers.

gunicorn rejects a field of more than 8190 characters and a request of more than 100 fields. Neither a subscriber nor a
dead letter sink could therefore accept such an event.
"""
SAFE_CHARACTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that need no percent-encoding in a header value (CloudEvents HTTP binding, 3.1.3.2)."""


@dataclass(frozen=True)
class Envelope:
    """One event in binary mode; header names are in lower case."""

    headers: Mapping[str, str]
    body: bytes

    def get_attribute(self, name: str) -> str | None:
        """Return a context attribute or extension, or None if the event does not have it."""
        if name == "datacontenttype":
            return self.headers.get(CONTENT_TYPE)
        value = self.headers.get(f"ce-{name}")
        return None if value is None else unquote(value)

    @property
    def ordering_key(self) -> str:
        """Return the key within which events stay in order: the partition key, else the subject, else the source.

        The API server's events have no partition key. Their subject keeps the events of one object in order.
        """
        return self.get_attribute("partitionkey") or self.get_attribute("subject") or self.get_attribute("source") or ""

    def build_log_fields(self) -> dict[str, str]:
        """Return the event's attributes for a log line."""
        attributes = {name: self.get_attribute(name) for name in ("id", "type", "source", "subject", "node")}
        return {name: value for name, value in attributes.items() if value}

    def is_equivalent(self, other: Envelope) -> bool:
        """Return whether the other event differs at most in id, time and trace."""
        return self.body == other.body and _omit_volatile_headers(self.headers) == _omit_volatile_headers(other.headers)

    def with_extensions(self, extensions: Mapping[str, str]) -> Envelope:
        """Return the event with additional extensions."""
        added = {f"ce-{name}": quote(value, safe=SAFE_CHARACTERS) for name, value in extensions.items()}
        return Envelope({**self.headers, **added}, self.body)


def _omit_volatile_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in ("ce-id", "ce-time", f"ce-{TRACE_EXTENSION}")}


def parse_envelope(headers: Mapping[str, str], body: bytes) -> Envelope:
    """Parse the event in a request or reply. Raises `BadEvent` if it is invalid or cannot be forwarded.

    A trace that is only in the plain `traceparent` header becomes the extension.
    """
    try:
        envelope = encode_envelope(http_binding.decode_event(headers, body))
    except UnicodeEncodeError:
        raise http_binding.BadEvent("an attribute contains characters that cannot be encoded") from None
    lowered = {name.lower(): value for name, value in headers.items()}
    if http_binding.parse_media_type(lowered.get(CONTENT_TYPE, "")) != http_binding.STRUCTURED_CONTENT_TYPE:
        envelope = Envelope(envelope.headers, body)  # Serializing the body again could change its bytes.
    if (
        trace_context.TRACEPARENT_PATTERN.fullmatch(lowered.get(TRACE_EXTENSION, ""))
        and envelope.get_attribute(TRACE_EXTENSION) is None
    ):
        envelope = envelope.with_extensions({TRACE_EXTENSION: lowered[TRACE_EXTENSION]})
    _check_sendable(envelope)
    return envelope


def _check_sendable(envelope: Envelope) -> None:
    """Raise `BadEvent` for an event that could not be posted to a subscriber.

    An event in structured mode may have attributes that do not fit into a header.
    """
    if len(envelope.headers) > MAX_HEADERS:
        raise http_binding.BadEvent(f"event has {len(envelope.headers)} attributes: the limit is {MAX_HEADERS}")
    for name, value in envelope.headers.items():
        if not HEADER_NAME_PATTERN.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise http_binding.BadEvent(f"attribute {name!r} cannot be sent as a header")
        if len(value) > MAX_VALUE_CHARACTERS:
            raise http_binding.BadEvent(f"attribute {name!r} is longer than {MAX_VALUE_CHARACTERS} characters")


def encode_envelope(event: BaseCloudEvent) -> Envelope:
    """Convert an event that a source built into an envelope."""
    message = http_binding.encode_binary(event)
    return Envelope(message.headers, message.body)
