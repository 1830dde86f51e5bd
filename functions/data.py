"""Reads the data of an event, which is a JSON object or a bad event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.signatures import is_ours
from eventing.wire import BadEvent
from kube.resource_versions import is_version


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


def is_text(value: object) -> bool:
    """Whether it is text that is not empty. Halves of characters, which JSON takes, `eventing.wire` has refused."""
    return isinstance(value, str) and bool(value)


def version_of(event: BaseCloudEvent, name: str) -> str:
    """The resource version that the data has under this name, "" for none. Raises `BadEvent` for what is none.

    Of an event that is not ours it is "", too: one of next year would keep whoever lists by it waiting.
    """
    version = data_of(event).get(name) or ""
    if version and not is_version(version):
        raise BadEvent(f"data.{name} is no resource version")
    return str(version) if is_ours(event) else ""
