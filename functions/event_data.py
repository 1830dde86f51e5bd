"""Reads and validates the data of an event; malformed data raises `BadEvent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.signatures import is_ours
from eventing.http_binding import BadEvent
from kube.resource_versions import is_version


def data_of(event: BaseCloudEvent) -> Mapping[str, Any]:
    """Return the event's data. Raises `BadEvent` if it is not a JSON object."""
    data = event.get_data()
    if not isinstance(data, dict):
        raise BadEvent("data is not a JSON object")
    return data


def metadata_of(event: BaseCloudEvent) -> Mapping[str, Any]:
    """Return the `metadata` of the object that an API server event carries, {} if there is none."""
    metadata = data_of(event).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def is_text(value: object) -> bool:
    """Return whether `value` is a non-empty string.

    Lone surrogates, which JSON allows, need no check here: `eventing.http_binding` has already rejected them.
    """
    return isinstance(value, str) and bool(value)


def version_of(event: BaseCloudEvent, name: str) -> str:
    """Return the resourceVersion in the data field `name`, "" if absent. Raises `BadEvent` if it is malformed.

    Also returns "" if this installation did not sign the event: a list request for a resourceVersion that does not
    exist yet would block.
    """
    version = data_of(event).get(name) or ""
    if version and not is_version(version):
        raise BadEvent(f"data.{name} is no resource version")
    return str(version) if is_ours(event) else ""
