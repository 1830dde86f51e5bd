"""Reads and validates the pods that an event reports, in the format in which the status lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.http_binding import BadEvent
from functions.event_data import data_of, is_text, version_of
from kube.maintenance.objects import is_count
from kube.maintenance.node_snapshot import Looked
from kube.paths import Object
from kube.times import moment_or_none

REQUIRED = ("namespace", "name", "reason")
FIELDS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("namespace", "name", "reason", "uid"), is_text),
    **dict.fromkeys(("message", "budget"), lambda value: value == "" or is_text(value)),
    **dict.fromkeys(("healthy", "needed"), is_count),
    "allowsNone": lambda value: isinstance(value, bool),
    "retryAfter": lambda value: moment_or_none(value) is not None,
}
"""Field → function that returns whether a value is valid for it. All other fields are dropped."""


def blocked_of(event: BaseCloudEvent) -> list[Object] | None:
    """Return the blocked pods, None if the event lists none. Raises `BadEvent` that names the malformed field."""
    blocked = data_of(event).get("blocked")
    if blocked is None:
        return None
    if not isinstance(blocked, list):
        raise BadEvent("data.blocked is no list")
    return [_pod(item) for item in blocked]


def _pod(item: Any) -> Object:
    if not isinstance(item, dict):
        raise BadEvent("data.blocked has what is no object")
    for name, holds in FIELDS.items():
        if not holds(item[name]) if name in item else name in REQUIRED:
            raise BadEvent(f"{name} of a pod in data.blocked is missing or malformed")
    return {name: item[name] for name in item if name in FIELDS}


def looked_of(event: BaseCloudEvent) -> Looked | None:
    """Return the snapshot that the event's step took; None if it has none. Raises `BadEvent` if it is malformed."""
    version, left = version_of(event, "maintenanceVersion"), data_of(event).get("left")
    if not version:
        return None
    if not isinstance(left, list | None) or not all(map(_is_left, left or [])):
        raise BadEvent("data.left is no list of pods")
    return Looked(version, data_of(event).get("closed") is True, [{"metadata": pod} for pod in left or []])


def _is_left(pod: Any) -> bool:
    """Return whether `pod` has valid values for all fields that the status reports."""
    if not isinstance(pod, dict) or not all(is_text(pod.get(name)) for name in ("namespace", "name")):
        return False
    end, kept = pod.get("deletionTimestamp"), pod.get("finalizers", [])
    return (end is None or moment_or_none(end) is not None) and isinstance(kept, list) and all(map(is_text, kept))
