"""Reads the data of an event, which is a JSON object or a bad event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.wire import BadEvent


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
