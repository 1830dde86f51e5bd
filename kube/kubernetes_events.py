"""Kubernetes Events, which `kubectl describe` shows for an object: what they report, and how they are built.

Pure functions for all components; `functions.event_recorder` writes the Events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from kube.paths import Object
from kube.text_limits import truncate
from kube.times import format_time

MAX_NAME_CHARACTERS, MAX_MESSAGE_CHARACTERS = 236, 900
"""Maximum length, in characters, of the object's name within the Event's name, and of the Event's message.

An Event's name has at most 253 characters; the usual limit of a message is 1024.
"""
CLUSTER_SCOPED_NAMESPACE = "default"
"""Namespace of the Events about cluster-scoped objects."""
NORMAL_TYPE, WARNING_TYPE = "Normal", "Warning"
NoticeT = TypeVar("NoticeT", bound="EventNotice")


@dataclass(frozen=True)
class EventNotice:
    """What one Kubernetes Event reports.

    Attributes:
        regarding: reference to the object, with the fields of `involvedObject`.
        reason: reason in CamelCase.
        message: text for the administrator.
        event_type: `NORMAL_TYPE` or `WARNING_TYPE`.
        series: if set, a repeated notice with the same series, object and reason increments the count of one Event.
            Otherwise each message has its own Event, which is written once.
    """

    regarding: Mapping[str, str]
    reason: str
    message: str
    event_type: str = WARNING_TYPE
    series: str = ""

    @classmethod
    def from_object(
        cls: type[NoticeT], obj: Mapping[str, Any], api_version: str, kind: str, reason: str, message: str
    ) -> NoticeT:
        """Build a warning about `obj`.

        The caller passes the API version and kind, because list items and metadata-only objects lack them.
        """
        metadata = obj["metadata"]
        named = {key: str(metadata[key]) for key in ("name", "namespace", "uid") if metadata.get(key)}
        return cls({"apiVersion": api_version, "kind": kind, **named}, reason, message)

    @property
    def namespace(self) -> str:
        """Return the namespace of the Event, where `kubectl describe` searches for it."""
        return self.regarding.get("namespace") or CLUSTER_SCOPED_NAMESPACE

    @property
    def log_fields(self) -> dict[str, str]:
        """Return the object's kind, name and namespace as fields of a log line."""
        names = {key: self.regarding.get(key, "") for key in ("name", "namespace")}
        return {"reconciler kind": self.regarding["kind"], **names}

    @property
    def event_name(self) -> str:
        """Return the name of the Event; notices that share an Event have the same name."""
        regarding = self.regarding
        key_parts = (
            (self.series, regarding["kind"], self.reason)
            if self.series
            else (regarding.get("uid") or regarding["kind"], self.reason, self.message)
        )
        digest = hashlib.sha256("|".join(key_parts).encode(errors="backslashreplace")).hexdigest()[:16]
        return f"{regarding['name'][:MAX_NAME_CHARACTERS].rstrip('-.')}.{digest}"


def build_event(notice: EventNotice, now: datetime) -> Object:
    """Build the Event for a notice."""
    timestamp, involved_object = format_time(now), dict(notice.regarding)
    if involved_object["kind"] == "Node":
        # `kubectl describe node` finds Events by the node's name in place of its uid, as kubelets write them.
        involved_object["uid"] = involved_object["name"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": notice.event_name, "namespace": notice.namespace},
        "involvedObject": involved_object,
        "type": notice.event_type,
        "reason": notice.reason,
        "message": truncate(notice.message, MAX_MESSAGE_CHARACTERS),
        "source": {"component": "node-maintenance"},
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }


def build_increment_patch(existing: Mapping[str, Any], event: Mapping[str, Any]) -> Object:
    """Build the merge patch that increments the count of an existing Event and updates its message and timestamp."""
    newest = {key: event[key] for key in ("message", "lastTimestamp")}
    return {**newest, "count": (existing.get("count") or 1) + 1}
