"""The errors that decide what becomes of an event that a step cannot act on (a bug stays a 500)."""

from __future__ import annotations

from typing import NoReturn

from cloudevents.core.base import BaseCloudEvent


class Retry(Exception):
    """The same event may succeed later: answered with 503, so that the broker tries again."""


class Busy(Retry):
    """Another try is under way in this process, and says itself how it ends."""


class Failed(Exception):
    """The step cannot be done: becomes the wing's event of failure, which its status records."""


def retry(_step: str, _event: BaseCloudEvent, error: str) -> NoReturn:
    """What a step without an event of failure does about `Failed`: raises `Retry`."""
    raise Retry(error)
