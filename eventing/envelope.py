"""An event as the local delivery keeps it: the headers and body to post, ready made. No parsing after acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from cloudevents.core.base import BaseCloudEvent

from eventing import wire

CONTENT_TYPE = "content-type"
TRACE = "traceparent"
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
        named = {name: self.attribute(name) for name in ("id", "type", "source", "node")}
        return {name: value for name, value in named.items() if value}

    def extended(self, extensions: Mapping[str, str]) -> Envelope:
        """The same event with further extensions."""
        added = {f"ce-{name}": quote(value, safe=SAFE) for name, value in extensions.items()}
        return Envelope({**self.headers, **added}, self.body)


def received(headers: Mapping[str, str], body: bytes) -> Envelope:
    """The event in a request or reply; raises `wire.BadEvent`. A trace given as plain header becomes the extension."""
    envelope = sealed(wire.received(headers, body))
    lowered = {name.lower(): value for name, value in headers.items()}
    if not lowered.get(CONTENT_TYPE, "").startswith(wire.STRUCTURED):
        envelope = Envelope(envelope.headers, body)  # the very bytes: written anew, they could differ
    if TRACE in lowered and envelope.attribute(TRACE) is None:
        return envelope.extended({TRACE: lowered[TRACE]})
    return envelope


def sealed(event: BaseCloudEvent) -> Envelope:
    """Our own event, ready to be kept and posted."""
    message = wire.binary(event)
    return Envelope(message.headers, message.body)
