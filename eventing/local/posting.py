"""Posts an event to a subscriber once, and classifies the response like Knative's broker. Used by `delivery`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import aiohttp

from eventing import dead_letters, trace_context
from eventing.http_binding import BadEvent
from eventing.local import envelope as envelopes
from eventing.local.envelope import TRACE_EXTENSION, Envelope

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
"""Seconds to keep an idle connection. Gunicorn closes an idle connection after 2 s, and reuse would then fail."""
SKIPPED_AUTO_HEADERS = ["Content-Type", "User-Agent", "Accept"]
"""Headers that aiohttp would add; an event without content type must be sent without one."""


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
    if trace_context.TRACEPARENT_PATTERN.fullmatch(trace):  # Other text may be invalid in a header.
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
        return PostResult(status, accepted, body, envelopes.parse_envelope(headers, body))
    except BadEvent as error:
        return PostResult(BAD_REPLY_STATUS, accepted, f"response is neither empty nor a CloudEvent: {error}".encode())
