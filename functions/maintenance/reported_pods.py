"""Reads and validates the pods that an event reports, in the format in which the status lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing.http_binding import BadEvent
from functions.event_data import is_nonempty_string, parse_resource_version, require_data
from kube.maintenance.node_snapshot import StepSnapshot
from kube.maintenance.objects import is_pod_count
from kube.paths import Object
from kube.times import parse_time_or_none

REQUIRED_FIELDS = ("namespace", "name", "reason")
FIELD_CHECKS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("namespace", "name", "reason", "uid"), is_nonempty_string),
    **dict.fromkeys(("message", "budget"), lambda value: value == "" or is_nonempty_string(value)),
    **dict.fromkeys(("healthy", "needed"), is_pod_count),
    "allowsNone": lambda value: isinstance(value, bool),
    "retryAfter": lambda value: parse_time_or_none(value) is not None,
}
"""Field → function that returns whether a value is valid for this field. All other fields are dropped."""


def parse_blocked_pods(event: BaseCloudEvent) -> list[Object] | None:
    """Return the blocked pods, or None if the event has no list. Raises a `BadEvent` that names the malformed field."""
    blocked = require_data(event).get("blocked")
    if blocked is None:
        return None
    if not isinstance(blocked, list):
        raise BadEvent("data.blocked is not a list")
    return [_parse_pod(pod) for pod in blocked]


def _parse_pod(pod: Any) -> Object:
    if not isinstance(pod, dict):
        raise BadEvent("data.blocked contains an item that is not an object")
    for name, is_valid in FIELD_CHECKS.items():
        if not is_valid(pod[name]) if name in pod else name in REQUIRED_FIELDS:
            raise BadEvent(f"{name} of a pod in data.blocked is missing or malformed")
    return {name: pod[name] for name in pod if name in FIELD_CHECKS}


def parse_snapshot(event: BaseCloudEvent) -> StepSnapshot | None:
    """Return the snapshot that the event's step took; None if there is none. Raises `BadEvent` if malformed."""
    version, leaving = parse_resource_version(event, "maintenanceVersion"), require_data(event).get("left")
    if not version:
        return None
    if not isinstance(leaving, list | None) or not all(map(_is_valid_pod, leaving or [])):
        raise BadEvent("data.left is not a list of pods")
    return StepSnapshot(
        version, require_data(event).get("closed") is True, [{"metadata": pod} for pod in leaving or []]
    )


def _is_valid_pod(pod: Any) -> bool:
    """Return whether `pod` has valid values for all fields that the status reports."""
    if not isinstance(pod, dict) or not all(is_nonempty_string(pod.get(name)) for name in ("namespace", "name")):
        return False
    deleted_at, finalizers = pod.get("deletionTimestamp"), pod.get("finalizers", [])
    return (
        (deleted_at is None or parse_time_or_none(deleted_at) is not None)
        and isinstance(finalizers, list)
        and all(map(is_nonempty_string, finalizers))
    )
