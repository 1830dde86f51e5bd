"""Builds the Kubernetes Events that `kubectl describe` shows for an object, for all components. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

from kube.paths import Object
from kube.text_limits import truncate
from kube.times import format_time

MAX_NAME_CHARACTERS, MAX_MESSAGE_CHARACTERS = 236, 900
"""Maximum length, in characters, of the object's name within the Event's name, and of the Event's message.

An Event's name has at most 253 characters; the usual limit of a message is 1024.
"""
NORMAL_TYPE, WARNING_TYPE = "Normal", "Warning"


def build_event_name(name: str, *key_parts: str) -> str:
    """Return the name of an Event about the object `name`; the same `key_parts` always give the same name."""
    digest = hashlib.sha256("|".join(key_parts).encode(errors="backslashreplace")).hexdigest()[:16]
    return f"{name[:MAX_NAME_CHARACTERS].rstrip('-.')}.{digest}"


def build_event(
    name: str,
    namespace: str,
    involved_object: Mapping[str, str],
    event_type: str,
    reason: str,
    message: str,
    now: datetime,
) -> Object:
    """Build the Event `name` about the object `involved_object`; `event_type` is `NORMAL_TYPE` or `WARNING_TYPE`."""
    timestamp = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": dict(involved_object),
        "type": event_type,
        "reason": reason,
        "message": truncate(message, MAX_MESSAGE_CHARACTERS),
        "source": {"component": "node-maintenance"},
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }
