"""Reads and validates the data of an event; malformed data raises `BadEvent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.http_binding import BadEvent
from eventing.signatures import has_valid_signature
from kube.resource_versions import is_resource_version


def require_data(event: BaseCloudEvent) -> Mapping[str, Any]:
    """Return the event's data. Raises `BadEvent` if the data is not a JSON object."""
    data = event.get_data()
    if not isinstance(data, dict):
        raise BadEvent("data is not a JSON object")
    return data


def get_metadata(event: BaseCloudEvent) -> Mapping[str, Any]:
    """Return the `metadata` of the Kubernetes object in the event's data, or {} if the data has no `metadata`."""
    metadata = require_data(event).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def is_nonempty_string(value: object) -> bool:
    """Return whether `value` is a non-empty string.

    Lone surrogates, which JSON allows, need no check here: `eventing.http_binding` has already rejected them.
    """
    return isinstance(value, str) and bool(value)


def parse_resource_version(event: BaseCloudEvent, field: str) -> str:
    """Return the resourceVersion in the data field `field`, or "" if the field is missing.

    Also returns "" if this install did not sign the event, because a list request with a forged resourceVersion that
    does not exist yet would block. Raises `BadEvent` if the value is not a resourceVersion.
    """
    version = require_data(event).get(field) or ""
    if version and not is_resource_version(version):
        raise BadEvent(f"data.{field} is not a resourceVersion")
    return str(version) if has_valid_signature(event) else ""
