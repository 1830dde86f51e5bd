"""Exceptions with which a step determines the response to an event that it cannot handle; a bug causes a 500."""

from __future__ import annotations

from typing import NoReturn

from cloudevents.core.base import BaseCloudEvent


class Retry(Exception):
    """Raised if the same event may succeed later; the server answers 503, and the broker redelivers the event."""


class Busy(Retry):
    """Raised if another attempt is in flight in this process; that attempt reports its own outcome."""


class Failed(Exception):
    """Raised if retrying the same event would not help; the component's failure handler reports the error."""


def raise_retry(_step: str, _event: BaseCloudEvent, error: str) -> NoReturn:
    """Raise `Retry`: the default failure handler, for steps that have no failure event."""
    raise Retry(error)
