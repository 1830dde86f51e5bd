"""An accepted event as HTTP headers and body: parsed once, at the ingress, and posted to each subscriber.

The classification of responses is that of Knative's broker.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

import aiohttp
from cloudevents.core.base import BaseCloudEvent

from eventing import dead_letters, extensions, http_binding
from eventing.http_binding import BadEvent

CONTENT_TYPE = "content-type"
TRACE_EXTENSION = extensions.TRACEPARENT_EXTENSION
HEADER_NAME_PATTERN = re.compile(r"[a-z0-9-]+")
MAX_VALUE_CHARACTERS, MAX_HEADERS = 8000, 64
"""Maximum length of a header value in characters, and maximum number of headers.

gunicorn rejects a field of more than 8190 characters and a request of more than 100 fields. Neither a subscriber nor a
dead letter sink could therefore accept such an event.
"""
SAFE_CHARACTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that need no percent-encoding in a header value (CloudEvents HTTP binding, 3.1.3.2)."""
RETRYABLE_STATUSES = {404, 408, 409, 429}
"""Statuses that are retried in addition to 5xx: Knative's `SelectiveRetry`."""
NO_RESPONSE_STATUS = 500
"""Status that Knative assigns to a request without a response."""
BAD_REPLY_STATUS = 502
"""Status that Knative's broker assigns to a response that is neither empty nor a CloudEvent."""
UNSENDABLE_STATUS = 400
"""Status for an event that cannot be sent as an HTTP request.

The ingress rejects such events, but the outbox may contain one that an older release accepted.
"""
KEEPALIVE_SECONDS = 1.0
"""Seconds to keep an idle connection: less than gunicorn's 75 s, since it might close a connection that is reused."""
SKIPPED_AUTO_HEADERS = ["Content-Type", "User-Agent", "Accept"]
"""Headers that aiohttp would add; an event without content type must be sent without one."""


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

    def with_extensions(self, extensions: Mapping[str, str]) -> Envelope:
        """Return the event with additional extensions."""
        added = {f"ce-{name}": quote(value, safe=SAFE_CHARACTERS) for name, value in extensions.items()}
        return Envelope({**self.headers, **added}, self.body)


EmitEvent = Callable[[Envelope], None]
"""Function that stores an event before it returns."""


def parse_envelope(headers: Mapping[str, str], body: bytes) -> Envelope:
    """Parse the event in a request or reply. Raises `BadEvent` if it is invalid or cannot be forwarded.

    A trace that is only in the plain `traceparent` header becomes the extension.
    """
    try:
        envelope = encode_envelope(http_binding.decode_event(headers, body))
    except UnicodeEncodeError:
        raise BadEvent("an attribute contains characters that cannot be encoded") from None
    lowered = {name.lower(): value for name, value in headers.items()}
    if http_binding.parse_media_type(lowered.get(CONTENT_TYPE, "")) != http_binding.STRUCTURED_CONTENT_TYPE:
        envelope = Envelope(envelope.headers, body)  # Serializing the body again could change its bytes.
    if (
        extensions.TRACEPARENT_PATTERN.fullmatch(lowered.get(TRACE_EXTENSION, ""))
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
        raise BadEvent(f"event has {len(envelope.headers)} attributes: the limit is {MAX_HEADERS}")
    for name, value in envelope.headers.items():
        if not HEADER_NAME_PATTERN.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise BadEvent(f"attribute {name!r} cannot be sent as a header")
        if len(value) > MAX_VALUE_CHARACTERS:
            raise BadEvent(f"attribute {name!r} is longer than {MAX_VALUE_CHARACTERS} characters")


def encode_envelope(event: BaseCloudEvent) -> Envelope:
    """Convert an event that a source built into an envelope."""
    message = http_binding.encode_binary(event)
    return Envelope(message.headers, message.body)


@dataclass(frozen=True)
class PostResult:
    """The result of one attempt.

    Attributes:
        status: HTTP status, or NO_RESPONSE_STATUS, BAD_REPLY_STATUS or UNSENDABLE_STATUS.
        is_accepted: Whether the HTTP status was 2xx, whatever the body; this is sufficient for a dead letter.
        body: The response's body, or the error.
        reply: The event in the response.
        duration_seconds: Duration of the attempt.
    """

    status: int
    is_accepted: bool = False
    body: bytes = b""
    reply: Envelope | None = None
    duration_seconds: float = 0.0

    @property
    def is_delivered(self) -> bool:
        """Return whether the subscriber accepted the event, and replied with an event or with nothing."""
        return self.is_accepted and self.status != BAD_REPLY_STATUS

    @property
    def is_retryable(self) -> bool:
        """Return whether another attempt may succeed."""
        return self.status >= 500 or self.status in RETRYABLE_STATUSES

    @property
    def error_data(self) -> str:
        """Return the body encoded for `knativeerrordata`."""
        return dead_letters.encode_error_data(self.body)


def create_session() -> aiohttp.ClientSession:
    """Create the session for all subscribers; `Delivery` limits its connections by Trigger and by server."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
    return aiohttp.ClientSession(connector=connector, skip_auto_headers=SKIPPED_AUTO_HEADERS, auto_decompress=True)


async def post_envelope(
    session: aiohttp.ClientSession, url: str, envelope: Envelope, timeout_seconds: float
) -> PostResult:
    """Post `envelope` in binary mode and return the outcome; a failed request does not raise."""
    start = time.perf_counter()
    outcome = await _send_request(session, url, envelope, timeout_seconds)
    return replace(outcome, duration_seconds=time.perf_counter() - start)


async def _send_request(
    session: aiohttp.ClientSession, url: str, envelope: Envelope, timeout_seconds: float
) -> PostResult:
    """Post the event with `Prefer: reply`, as Knative does, and classify the response."""
    headers = {**envelope.headers, "prefer": "reply"}
    trace = envelope.get_attribute(TRACE_EXTENSION) or ""
    if extensions.TRACEPARENT_PATTERN.fullmatch(trace):  # Other text may be invalid in a header.
        headers[TRACE_EXTENSION] = trace
    client_timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with session.post(
            url, data=envelope.body, headers=headers, timeout=client_timeout, allow_redirects=False
        ) as response:
            return _build_result(response.status, response.headers, await response.read())
    except asyncio.TimeoutError:
        return PostResult(NO_RESPONSE_STATUS, body=f"no response within {timeout_seconds:g} s".encode())
    except (aiohttp.ClientError, OSError) as error:
        return PostResult(NO_RESPONSE_STATUS, body=f"no response: {error or type(error).__name__}".encode())
    except ValueError as error:
        return PostResult(
            UNSENDABLE_STATUS, body=f"cannot send the event as an HTTP request: {error}".encode(errors="replace")
        )


def _build_result(status: int, headers: Mapping[str, str], body: bytes) -> PostResult:
    is_event = any(name.lower().startswith("ce-") for name in headers)
    accepted = 200 <= status < 300
    if not accepted or (not body and not is_event):
        return PostResult(status, accepted, body)
    try:
        return PostResult(status, accepted, body, parse_envelope(headers, body))
    except BadEvent as error:
        return PostResult(BAD_REPLY_STATUS, accepted, f"response is neither empty nor a CloudEvent: {error}".encode())
