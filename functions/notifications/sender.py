"""Sends notifications to `spec.notify.url`, as signed CloudEvents in structured mode; does not follow redirects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timezone

import aiohttp
from cloudevents.core.v1.event import CloudEvent

from eventing.events import SOURCE_PREFIX
from eventing.http_binding import encode_structured
from functions.notifications.settings import Settings
from kube.client.deadline import get_seconds_left
from kube.notifications.webhooks import Notification, build_signed_headers, get_url

TIMEOUT_SECONDS = 1.0
"""Total timeout for connecting and for the response, because the whole step should take less than two seconds."""
SOURCE = f"{SOURCE_PREFIX}notify-owners"


class SendError(Exception):
    """Raised if a receiver did not accept a notification; the message does not contain the URL, which may be secret."""


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield the HTTP session for the notifications of a pass. Raises `Unavailable` if the deadline has passed."""
    timeout = aiohttp.ClientTimeout(total=min(TIMEOUT_SECONDS, get_seconds_left()))
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


async def send(session: aiohttp.ClientSession, notification: Notification, settings: Settings) -> None:
    """Send one notification. Raises `SendError` unless the response status is 2xx."""
    now, name = datetime.now(timezone.utc), notification.maintenance["metadata"]["name"]
    message = encode_structured(_build_event(notification, now))
    signed = build_signed_headers(settings.key, notification.id, message.body, now)
    with _name_errors(name):
        async with session.post(
            get_url(notification.maintenance),
            data=message.body,
            headers={**message.headers, **signed},
            allow_redirects=False,
        ) as response:
            if not 200 <= response.status < 300:
                remedy = "redirects are not followed" if 300 <= response.status < 400 else "check the receiver"
                raise SendError(f'cannot notify for maintenance "{name}": status {response.status}: {remedy}')


@contextmanager
def _name_errors(maintenance_name: str) -> Iterator[None]:
    """Convert a connection error to `SendError`, without its message, which may contain a secret in the URL."""
    try:
        yield
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        reason = "no response in time" if isinstance(error, asyncio.TimeoutError) else type(error).__name__
        raise SendError(
            f'cannot notify for maintenance "{maintenance_name}": {reason}: check spec.notify.url and the receiver'
        ) from None


def _build_event(notification: Notification, now: datetime) -> CloudEvent:
    attributes = {
        "id": notification.id,
        "source": SOURCE,
        "type": notification.type,
        "subject": notification.maintenance["metadata"]["name"],
        "time": now,
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, notification.data)
