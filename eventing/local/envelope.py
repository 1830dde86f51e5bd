"""An accepted event as HTTP headers and body, which the ingress parses once and `delivery` posts to each subscriber.

Responses are classified as in Knative's broker.
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

gunicorn rejects header fields of more than 8190 characters, and requests with more than 100 fields. Neither a
subscriber nor a dead letter sink could therefore accept a larger event.
"""
SAFE_CHARACTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that need no percent-encoding in a header value (CloudEvents HTTP binding, section 3.1.3.2)."""
RETRYABLE_STATUSES = {404, 408, 409, 429}
"""HTTP statuses that are retried in addition to 5xx, as in Knative's `SelectiveRetry`."""
NO_RESPONSE_STATUS = 500
"""HTTP status that Knative assigns to a request without a response."""
BAD_REPLY_STATUS = 502
"""HTTP status that Knative's broker assigns to a response that is neither empty nor a CloudEvent."""
UNSENDABLE_STATUS = 400
"""HTTP status for an event that cannot be sent as an HTTP request.

The ingress rejects such events, but the outbox may contain one that an older release accepted.
"""
KEEPALIVE_SECONDS = 1.0
"""Seconds after which an idle connection is closed, before gunicorn closes it after 75 s during a new request."""
SKIPPED_AUTO_HEADERS = ["Content-Type", "User-Agent", "Accept"]
"""Headers that aiohttp must not add, because an event without a content type must be sent without one."""


@dataclass(frozen=True)
class Envelope:
    """An event in binary mode; the header names are in lower case."""

    headers: Mapping[str, str]
    body: bytes

    def get_attribute(self, name: str) -> str | None:
        """Return the value of a context attribute or extension, None if the event does not have it."""
        if name == "datacontenttype":
            return self.headers.get(CONTENT_TYPE)
        value = self.headers.get(f"ce-{name}")
        return None if value is None else unquote(value)

    @property
    def ordering_key(self) -> str:
        """Return the key within which events stay in order: the partition key, else the subject, else the source.

        The API server's events have no partition key; their subject keeps the events of each object in order.
        """
        return self.get_attribute("partitionkey") or self.get_attribute("subject") or self.get_attribute("source") or ""

    def build_log_fields(self) -> dict[str, str]:
        """Return those attributes of the event that a log line contains."""
        attributes = {name: self.get_attribute(name) for name in ("id", "type", "source", "subject", "node")}
        return {name: value for name, value in attributes.items() if value}

    def with_extensions(self, extensions: Mapping[str, str]) -> Envelope:
        """Return the event with these extensions added."""
        added = {f"ce-{name}": quote(value, safe=SAFE_CHARACTERS) for name, value in extensions.items()}
        return Envelope({**self.headers, **added}, self.body)


EmitEvent = Callable[[Envelope], None]
"""Function that accepts an event, and returns only after the event is stored."""


def parse_envelope(headers: Mapping[str, str], body: bytes) -> Envelope:
    """Parse the event in a request or reply. Raises `BadEvent` if it is invalid or cannot be forwarded.

    If the `traceparent` is only in the plain HTTP header, it becomes the event's extension.
    """
    try:
        envelope = encode_envelope(http_binding.decode_event(headers, body))
    except UnicodeEncodeError:
        raise BadEvent("an attribute contains characters that cannot be encoded") from None
    lowered = {name.lower(): value for name, value in headers.items()}
    if http_binding.parse_media_type(lowered.get(CONTENT_TYPE, "")) != http_binding.STRUCTURED_CONTENT_TYPE:
        envelope = Envelope(envelope.headers, body)  # keep the body, because serializing it again could change it
    if (
        extensions.TRACEPARENT_PATTERN.fullmatch(lowered.get(TRACE_EXTENSION, ""))
        and envelope.get_attribute(TRACE_EXTENSION) is None
    ):
        envelope = envelope.with_extensions({TRACE_EXTENSION: lowered[TRACE_EXTENSION]})
    _check_sendable(envelope)
    return envelope


def _check_sendable(envelope: Envelope) -> None:
    """Raise `BadEvent` for an event that cannot be posted to a subscriber.

    An event in structured mode may have attributes that are invalid as headers.
    """
    if len(envelope.headers) > MAX_HEADERS:
        raise BadEvent(f"event has {len(envelope.headers)} attributes: the limit is {MAX_HEADERS}")
    for name, value in envelope.headers.items():
        if not HEADER_NAME_PATTERN.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise BadEvent(f"attribute {name!r} cannot be sent as a header")
        if len(value) > MAX_VALUE_CHARACTERS:
            raise BadEvent(f"attribute {name!r} is longer than {MAX_VALUE_CHARACTERS} characters")


def encode_envelope(event: BaseCloudEvent) -> Envelope:
    """Encode an event that a source has built as an envelope."""
    message = http_binding.encode_binary(event)
    return Envelope(message.headers, message.body)


@dataclass(frozen=True)
class PostResult:
    """The result of a delivery attempt.

    Attributes:
        status: HTTP status, or NO_RESPONSE_STATUS, BAD_REPLY_STATUS or UNSENDABLE_STATUS.
        is_accepted: Whether the HTTP status was 2xx, with any body, which is sufficient for a dead letter.
        body: Body of the response, or the error message.
        reply: The event in the response, None if there is none.
        duration_seconds: Duration of the attempt.
    """

    status: int
    is_accepted: bool = False
    body: bytes = b""
    reply: Envelope | None = None
    duration_seconds: float = 0.0

    @property
    def is_delivered(self) -> bool:
        """Return whether the subscriber accepted the event, and its response was empty or an event."""
        return self.is_accepted and self.status != BAD_REPLY_STATUS

    @property
    def is_retryable(self) -> bool:
        """Return whether a retry may succeed."""
        return self.status >= 500 or self.status in RETRYABLE_STATUSES

    @property
    def error_data(self) -> str:
        """Return the body, encoded for `knativeerrordata`."""
        return dead_letters.encode_error_data(self.body)


def create_session() -> aiohttp.ClientSession:
    """Create the HTTP session for all subscribers; `Delivery` limits its connections by Trigger and by server."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
    return aiohttp.ClientSession(connector=connector, skip_auto_headers=SKIPPED_AUTO_HEADERS, auto_decompress=True)


async def post_envelope(
    session: aiohttp.ClientSession, url: str, envelope: Envelope, timeout_seconds: float
) -> PostResult:
    """Post an event in binary mode and return the result; a failed request does not raise."""
    start = time.perf_counter()
    outcome = await _send_request(session, url, envelope, timeout_seconds)
    return replace(outcome, duration_seconds=time.perf_counter() - start)


async def _send_request(
    session: aiohttp.ClientSession, url: str, envelope: Envelope, timeout_seconds: float
) -> PostResult:
    """Post the event with the header `Prefer: reply`, as Knative does, and classify the response."""
    headers = {**envelope.headers, "prefer": "reply"}
    trace = envelope.get_attribute(TRACE_EXTENSION) or ""
    if extensions.TRACEPARENT_PATTERN.fullmatch(trace):  # other text may be invalid in a header
        headers[TRACE_EXTENSION] = trace
    client_timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with session.post(
            url, data=envelope.body, headers=headers, timeout=client_timeout, allow_redirects=False
        ) as response:
            return _classify_response(response.status, response.headers, await response.read())
    except asyncio.TimeoutError:
        return PostResult(NO_RESPONSE_STATUS, body=f"no response within {timeout_seconds:g} s".encode())
    except (aiohttp.ClientError, OSError) as error:
        return PostResult(NO_RESPONSE_STATUS, body=f"no response: {error or type(error).__name__}".encode())
    except ValueError as error:
        return PostResult(
            UNSENDABLE_STATUS, body=f"cannot send the event as an HTTP request: {error}".encode(errors="replace")
        )


def _classify_response(status: int, headers: Mapping[str, str], body: bytes) -> PostResult:
    is_event = any(name.lower().startswith("ce-") for name in headers)
    accepted = 200 <= status < 300
    if not accepted or (not body and not is_event):
        return PostResult(status, accepted, body)
    try:
        return PostResult(status, accepted, body, parse_envelope(headers, body))
    except BadEvent as error:
        return PostResult(BAD_REPLY_STATUS, accepted, f"response is neither empty nor a CloudEvent: {error}".encode())
