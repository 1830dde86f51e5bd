"""Reads the data of an event, which is a JSON object or a bad event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.signatures import is_ours
from eventing.wire import BadEvent
from kube.maintenance.objects import MALFORMED, moment
from kube.paths import Object

VERSION_DIGITS = 19
"""Of the largest number that any resource version may be."""
BLOCKED: Mapping[str, type] = {
    **dict.fromkeys(("namespace", "name", "uid", "reason", "message", "budget", "retryAfter"), str),
    **dict.fromkeys(("healthy", "needed"), int),
    "allowsNone": bool,
}
"""What a blocked pod in `pods.evicted` may say, and the type of each; the first four always."""


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


def blocked_in(event: BaseCloudEvent) -> list[Object] | None:
    """The blocked pods in the event's data, None where it names none. Raises `BadEvent` for what no status can hold."""
    items = data_of(event).get("blocked")
    if items is None:
        return None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadEvent("data.blocked is no list of pods")
    for place, item in enumerate(items):
        _check_blocked(item, f"data.blocked[{place}]")
    return items


def _check_blocked(item: Object, where: str) -> None:
    for name in ("namespace", "name", "uid", "reason"):
        if not item.get(name):
            raise BadEvent(f"{where}.{name} is missing")
    for name, kind in BLOCKED.items():
        if name in item and type(item[name]) is not kind:
            raise BadEvent(f"{where}.{name} is of type {type(item[name]).__name__}, not {kind.__name__}")
    try:
        moment(item.get("retryAfter") or "2000-01-01T00:00:00Z")
    except MALFORMED:
        raise BadEvent(f"{where}.retryAfter is no time") from None
