"""Posts an event to a subscriber once and classifies the response as Knative's broker does. Used by `delivery`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import aiohttp

from eventing import deadletters, traces
from eventing.local import envelope as envelopes
from eventing.local.envelope import TRACE, Envelope
from eventing.wire import BadEvent

RETRYABLE = {404, 408, 409, 429}
"""Beside 5xx: Knative's `SelectiveRetry`."""
NO_ANSWER = 500
"""The code Knative gives to a request that got no answer."""
BAD_REPLY = 502
"""The code Knative's broker gives to an answer that is neither empty nor a CloudEvent."""
UNSENDABLE = 400
"""The code of an event of which no request can be made. The door refuses such; an outbox may hold what an older one did
not."""
IDLE_SECONDS = 1.0
"""gunicorn closes idle connections after 2 s: reusing one at that moment would cost a failed attempt."""
OURS = ["Content-Type", "User-Agent", "Accept"]
"""Headers aiohttp would make up; an event without content type must stay without."""


@dataclass(frozen=True)
class Outcome:
    """The result of one attempt.

    Attributes:
        status: HTTP status, or NO_ANSWER or BAD_REPLY.
        accepted: whether the HTTP status was 2xx, whatever came with it: all that counts for a dead letter.
        text: the response's body, or what went wrong.
        reply: the event in the response.
        seconds: how long it took.
    """

    status: int
    accepted: bool = False
    text: bytes = b""
    reply: Envelope | None = None
    seconds: float = 0.0

    @property
    def delivered(self) -> bool:
        """Whether the subscriber accepted the event and replied nothing or an event."""
        return self.accepted and self.status != BAD_REPLY

    @property
    def retryable(self) -> bool:
        """Whether another attempt may succeed."""
        return self.status >= 500 or self.status in RETRYABLE

    @property
    def data(self) -> str:
        """The body as `knativeerrordata` carries it."""
        return deadletters.encoded(self.text)


def session() -> aiohttp.ClientSession:
    """Connections to all subscribers; `Delivery` bounds them, by Trigger and by server, not the pool."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
    return aiohttp.ClientSession(connector=connector, skip_auto_headers=OURS, auto_decompress=True)


async def post(client: aiohttp.ClientSession, url: str, event: Envelope, timeout: float) -> Outcome:
    """Post `event` in binary mode. Never raises for what a subscriber does."""
    start = time.perf_counter()
    outcome = await _answer(client, url, event, timeout)
    return replace(outcome, seconds=time.perf_counter() - start)


async def _answer(client: aiohttp.ClientSession, url: str, event: Envelope, timeout: float) -> Outcome:
    """`Prefer: reply` is what Knative sends."""
    headers = {**event.headers, "prefer": "reply"}
    trace = event.attribute(TRACE) or ""
    if traces.FORM.fullmatch(trace):  # any other text names no span, and might be no header
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
