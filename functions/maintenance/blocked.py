"""Reads the blocked pods that `pods.evicted` names, which become part of a status."""

from __future__ import annotations

from collections.abc import Mapping

from cloudevents.core.base import BaseCloudEvent

from eventing.wire import BadEvent
from functions.data import data_of
from kube.maintenance.objects import MALFORMED, moment
from kube.paths import Object

BLOCKED: Mapping[str, type] = {
    **dict.fromkeys(("namespace", "name", "uid", "reason", "message", "budget", "retryAfter"), str),
    **dict.fromkeys(("healthy", "needed"), int),
    "allowsNone": bool,
}
"""What a blocked pod in `pods.evicted` may say, and the type of each; the first four always."""


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
