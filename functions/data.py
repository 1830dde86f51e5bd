"""Reads the data of an event, which is a JSON object or a bad event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.signatures import is_ours
from eventing.wire import BadEvent

VERSION_DIGITS = 19
"""Of the largest number that any resource version may be."""


def data_of(event: BaseCloudEvent) -> Mapping[str, Any]:
    """The event's data, an object. Raises `BadEvent` otherwise."""
    data = event.get_data()
    if not isinstance(data, dict):
        raise BadEvent("data is not a JSON object")
    return data


def metadata_of(event: BaseCloudEvent) -> Mapping[str, Any]:
    """The metadata of the whole object that the API server's event carries, {} when there is none."""
    metadata = data_of(event).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def version_in(event: BaseCloudEvent, name: str) -> str:
    """A resource version in the event's data, "" where there is none. Raises `BadEvent` for what cannot be one.

    Of an event that is not ours it is "", too: one of next year would keep whoever lists by it waiting.
    """
    value = data_of(event).get(name) or ""
    if not isinstance(value, str) or (value and not (value.isascii() and value.isdecimal())):
        raise BadEvent(f"data.{name} is no resource version")
    if len(value) > VERSION_DIGITS:
        raise BadEvent(f"data.{name} is longer than any resource version")
    return value if is_ours(event) else ""
