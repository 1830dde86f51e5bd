"""Exceptions that a step raises for an event that it cannot handle; each determines the HTTP response to the event.

Any other exception is a bug and causes a 500 response.
"""

from __future__ import annotations

from typing import NoReturn

from cloudevents.core.base import BaseCloudEvent


class Retry(Exception):
    """Raised if a redelivery of the event may succeed; the server responds with 503, so the broker redelivers it."""


class Busy(Retry):
    """Raised if another attempt in this process prevents an attempt now; the other attempt reports its own outcome."""


class Failed(Exception):
    """Raised if a redelivery of the event cannot succeed; the step's failure handler reports the error."""


def raise_retry(_step: str, _event: BaseCloudEvent, error: str) -> NoReturn:
    """Raise `Retry`: the default failure handler, for steps that have no failure event."""
    raise Retry(error)
