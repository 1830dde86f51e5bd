"""Posts an event to a subscriber once, and classifies the response like Knative's broker. Used by `delivery`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import aiohttp

from eventing import dead_letters, trace_context
from eventing.local import envelope as envelopes
from eventing.local.envelope import TRACE, Envelope
from eventing.http_binding import BadEvent

RETRYABLE = {404, 408, 409, 429}
"""Statuses that are retried in addition to 5xx: Knative's `SelectiveRetry`."""
NO_ANSWER = 500
"""The status that Knative gives to a request without a response."""
BAD_REPLY = 502
"""The status that Knative's broker gives to a response that is neither empty nor a CloudEvent."""
UNSENDABLE = 400
"""The status of an event that cannot be made into an HTTP request.

The ingress rejects such events, but the outbox may contain one that an older release accepted.
"""
IDLE_SECONDS = 1.0
"""gunicorn closes idle connections after 2 s; reusing a connection at that moment would fail an attempt."""
OURS = ["Content-Type", "User-Agent", "Accept"]
"""Headers that aiohttp would add; an event without content type must be sent without one."""


@dataclass(frozen=True)
class Outcome:
    """The result of one attempt.

    Attributes:
        status: HTTP status, or NO_ANSWER, BAD_REPLY or UNSENDABLE.
        accepted: Whether the HTTP status was 2xx, whatever the body; this is sufficient for a dead letter.
        text: The response's body, or the error.
        reply: The event in the response.
        seconds: Duration of the attempt.
    """

    status: int
    accepted: bool = False
    text: bytes = b""
    reply: Envelope | None = None
    seconds: float = 0.0

    @property
    def delivered(self) -> bool:
        """Return whether the subscriber accepted the event, and replied with an event or with nothing."""
        return self.accepted and self.status != BAD_REPLY

    @property
    def retryable(self) -> bool:
        """Return whether another attempt may succeed."""
        return self.status >= 500 or self.status in RETRYABLE

    @property
    def data(self) -> str:
        """Return the body encoded for `knativeerrordata`."""
        return dead_letters.encoded(self.text)


def session() -> aiohttp.ClientSession:
    """Create the session for all subscribers; `Delivery` limits its connections by Trigger and by server."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
    return aiohttp.ClientSession(connector=connector, skip_auto_headers=OURS, auto_decompress=True)


async def post(client: aiohttp.ClientSession, url: str, event: Envelope, timeout: float) -> Outcome:
    """Post `event` in binary mode and return the outcome; errors of the subscriber do not raise."""
    start = time.perf_counter()
    outcome = await _answer(client, url, event, timeout)
    return replace(outcome, seconds=time.perf_counter() - start)


async def _answer(client: aiohttp.ClientSession, url: str, event: Envelope, timeout: float) -> Outcome:
    """Post the event with `Prefer: reply`, as Knative does, and classify the response."""
    headers = {**event.headers, "prefer": "reply"}
    trace = event.attribute(TRACE) or ""
    if trace_context.FORM.fullmatch(trace):  # other text identifies no span, and may be invalid in a header
        headers[TRACE] = trace
    limit = aiohttp.ClientTimeout(total=timeout)
    try:
        async with client.post(url, data=event.body, headers=headers, timeout=limit, allow_redirects=False) as answer:
            return _outcome(answer.status, answer.headers, await answer.read())
    except asyncio.TimeoutError:
        return Outcome(NO_ANSWER, text=f"no answer within {timeout:g} s".encode())
    except (aiohttp.ClientError, OSError) as error:
        return Outcome(NO_ANSWER, text=f"no answer: {error or type(error).__name__}".encode())
    except ValueError as error:
        return Outcome(UNSENDABLE, text=f"no request can be made of it: {error}".encode(errors="replace"))


def _outcome(status: int, headers: Mapping[str, str], body: bytes) -> Outcome:
    is_event = any(name.lower().startswith("ce-") for name in headers)
    accepted = 200 <= status < 300
    if not accepted or (not body and not is_event):
        return Outcome(status, accepted, body)
    try:
        return Outcome(status, accepted, body, envelopes.received(headers, body))
    except BadEvent as error:
        return Outcome(BAD_REPLY, accepted, f"the answer is neither empty nor a CloudEvent: {error}".encode())
