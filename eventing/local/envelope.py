"""An accepted event as the HTTP headers and body to post it with: it is parsed once, at the ingress."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from cloudevents.core.base import BaseCloudEvent

from eventing import traces, wire

CONTENT_TYPE = "content-type"
TRACE = traces.EXTENSION
HEADER_NAME = re.compile(r"[a-z0-9-]+")
LONGEST_VALUE, MOST_HEADERS = 8000, 64
"""Characters, and headers. gunicorn refuses a field over 8190 and more than 100 of them: no subscriber, and no dead
letter sink, could ever take such an event."""
SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What stands for itself in a header value (CloudEvents HTTP binding, 3.1.3.2)."""


@dataclass(frozen=True)
class Envelope:
    """One event in binary mode; header names in lower case."""

    headers: Mapping[str, str]
    body: bytes

    def attribute(self, name: str) -> str | None:
        """A context attribute or extension, None when the event has none."""
        if name == "datacontenttype":
            return self.headers.get(CONTENT_TYPE)
        value = self.headers.get(f"ce-{name}")
        return None if value is None else unquote(value)

    @property
    def key(self) -> str:
        """What keeps events in order: the partition key, or what the event is about, or where it comes from.

        The API server's events have no partition key: one object's events stay in order by their subject.
        """
        return self.attribute("partitionkey") or self.attribute("subject") or self.attribute("source") or ""

    def fields(self) -> dict[str, str]:
        """What a log line says of the event."""
        named = {name: self.attribute(name) for name in ("id", "type", "source", "subject", "node")}
        return {name: value for name, value in named.items() if value}

    def is_like(self, other: Envelope) -> bool:
        """Whether the other one differs in id, time and trace at most."""
        return self.body == other.body and _lasting(self.headers) == _lasting(other.headers)

    def extended(self, extensions: Mapping[str, str]) -> Envelope:
        """The same event with further extensions."""
        added = {f"ce-{name}": quote(value, safe=SAFE) for name, value in extensions.items()}
        return Envelope({**self.headers, **added}, self.body)


def _lasting(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in ("ce-id", "ce-time", f"ce-{TRACE}")}


def received(headers: Mapping[str, str], body: bytes) -> Envelope:
    """The event in a request or reply; raises `wire.BadEvent`. A trace given as plain header becomes the extension."""
    try:
        envelope = sealed(wire.received(headers, body))
    except UnicodeEncodeError:
        raise wire.BadEvent("an attribute has characters that are no text") from None
    lowered = {name.lower(): value for name, value in headers.items()}
    if wire.media_type(lowered.get(CONTENT_TYPE, "")) != wire.STRUCTURED:
        envelope = Envelope(envelope.headers, body)  # the very bytes: written anew, they could differ
    if traces.FORM.fullmatch(lowered.get(TRACE, "")) and envelope.attribute(TRACE) is None:
        envelope = envelope.extended({TRACE: lowered[TRACE]})
    _check_sendable(envelope)
    return envelope


def _check_sendable(envelope: Envelope) -> None:
    """Refuse at the door what could not be sent on: a structured event can hold what fits no header."""
    if len(envelope.headers) > MOST_HEADERS:
        raise wire.BadEvent(f"{len(envelope.headers)} attributes; at most {MOST_HEADERS} are taken")
    for name, value in envelope.headers.items():
        if not HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise wire.BadEvent(f"attribute {name!r} cannot be a header")
        if len(value) > LONGEST_VALUE:
            raise wire.BadEvent(f"attribute {name!r} is over {LONGEST_VALUE} characters")


def sealed(event: BaseCloudEvent) -> Envelope:
    """Our own event, ready to be kept and posted."""
    message = wire.binary(event)
    return Envelope(message.headers, message.body)
