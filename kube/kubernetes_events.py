"""Kubernetes Events, which `kubectl describe` shows with an object: built from a `KubernetesEvent`.

Pure functions for all components; `functions.event_recorder` writes the Events to the API server.
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
"""Maximum length, in characters, of the object's name within an Event's name, and of an Event's message.

The API server allows 253 characters in an Event's name and 1024 in its message.
"""
CLUSTER_SCOPED_NAMESPACE = "default"
"""Namespace of the Kubernetes Events about cluster-scoped objects."""
NORMAL_TYPE, WARNING_TYPE = "Normal", "Warning"
KubernetesEventT = TypeVar("KubernetesEventT", bound="KubernetesEvent")


@dataclass(frozen=True)
class KubernetesEvent:
    """The content of one Kubernetes Event.

    Attributes:
        regarding: Reference to the object, with the fields of `involvedObject`.
        reason: Reason in CamelCase.
        message: Explanation for the administrator.
        event_type: `NORMAL_TYPE` or `WARNING_TYPE`.
        series: If set, instances with the same series, object and reason increment the `count` of one Event. If "",
            each message has its own Event, which is written once.
    """

    regarding: Mapping[str, str]
    reason: str
    message: str
    event_type: str = WARNING_TYPE
    series: str = ""

    @classmethod
    def from_object(
        cls: type[KubernetesEventT], obj: Mapping[str, Any], api_version: str, kind: str, reason: str, message: str
    ) -> KubernetesEventT:
        """Build the content of a Warning about `obj`.

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
        """Return the object's kind, name and namespace as fields for a log line."""
        names = {key: self.regarding.get(key, "") for key in ("name", "namespace")}
        return {"reconciler kind": self.regarding["kind"], **names}

    @property
    def event_name(self) -> str:
        """Return the Event's name; instances that share one Event have the same name."""
        regarding = self.regarding
        key_parts = (
            (self.series, regarding["kind"], self.reason)
            if self.series
            else (regarding.get("uid") or regarding["kind"], self.reason, self.message)
        )
        digest = hashlib.sha256("|".join(key_parts).encode(errors="backslashreplace")).hexdigest()[:16]
        return f"{regarding['name'][:MAX_NAME_CHARACTERS].rstrip('-.')}.{digest}"


def build_event(kubernetes_event: KubernetesEvent, now: datetime) -> Object:
    """Build the Kubernetes Event object with this content."""
    timestamp, involved_object = format_time(now), dict(kubernetes_event.regarding)
    if involved_object["kind"] == "Node":
        # `kubectl describe node` finds the Events whose `involvedObject.uid` is the node's name, as kubelets set it.
        involved_object["uid"] = involved_object["name"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": kubernetes_event.event_name, "namespace": kubernetes_event.namespace},
        "involvedObject": involved_object,
        "type": kubernetes_event.event_type,
        "reason": kubernetes_event.reason,
        "message": truncate(kubernetes_event.message, MAX_MESSAGE_CHARACTERS),
        "source": {"component": "node-maintenance"},
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }


def build_increment_patch(existing: Mapping[str, Any], event: Mapping[str, Any]) -> Object:
    """Build the merge patch that increments an existing Event's count and updates its message and timestamp."""
    newest = {key: event[key] for key in ("message", "lastTimestamp")}
    return {**newest, "count": (existing.get("count") or 1) + 1}
