"""Builds the Kubernetes Events about nodes and maintenances that `kubectl describe` shows (OSV-12, NMO-27)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kube.kubernetes_events import NORMAL_TYPE, WARNING_TYPE, build_event, build_event_name
from kube.maintenance.objects import Maintenance, get_node_name
from kube.paths import Object, build_events_path

EVENTS_NAMESPACE = "default"
"""Namespace that holds the Events of cluster-scoped objects."""
EVENTS_PATH = build_events_path(EVENTS_NAMESPACE)
BEGIN_REASON, SUCCEED_REASON, FAIL_REASON, REMOVE_REASON = (
    "BeginMaintenance",
    "SucceedMaintenance",
    "FailedMaintenance",
    "RemovedMaintenance",
)
CORDON_REASON, UNCORDON_REASON = "CordonNode", "UncordonNode"
"""Event reasons that differ from the kubelet's NodeNotSchedulable and NodeSchedulable (OSV-12a).

The kubelet records its own Events up to ten seconds later.
"""
EVENT_MESSAGES = {
    BEGIN_REASON: "Begin a node maintenance",
    SUCCEED_REASON: "Node maintenance was succeeded",
    FAIL_REASON: "Failed a node maintenance",
    REMOVE_REASON: "Removed a node maintenance",
    CORDON_REASON: "Cordon a node",
    UNCORDON_REASON: "Uncordon a node",
}
"""Reason → message, in the medik8s operator's wording; a detail follows after a colon."""


def build_node_event(
    node_name: str, reason: str, message: str, maintenance: Maintenance, now: datetime, *, event_type: str = NORMAL_TYPE
) -> Object:
    """Build an Event about a node."""
    # `kubectl describe node` finds Events by the node's name in place of its uid, as kubelets write them
    involved_object = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name}
    return _build_event(involved_object, reason, message, maintenance, now, event_type)


def build_maintenance_events(reason: str, detail: str, maintenance: Maintenance, now: datetime) -> list[Object]:
    """Build the Events about a maintenance and its node that report the maintenance's progress (NMO-27).

    `detail` follows the reason's message. The Events are Warnings if the maintenance failed.
    """
    metadata = maintenance["metadata"]
    message = f"{EVENT_MESSAGES[reason]}: {detail}" if detail else EVENT_MESSAGES[reason]
    event_type = WARNING_TYPE if reason == FAIL_REASON else NORMAL_TYPE
    reference = {"kind": "NodeMaintenance", **{key: metadata[key] for key in ("name", "uid")}}
    events = [
        _build_event(
            {"apiVersion": maintenance["apiVersion"], **reference}, reason, message, maintenance, now, event_type
        )
    ]
    node = get_node_name(maintenance)
    return (
        [*events, build_node_event(node, reason, message, maintenance, now, event_type=event_type)] if node else events
    )


def _build_event(
    involved_object: Mapping[str, str],
    reason: str,
    message: str,
    maintenance: Maintenance,
    now: datetime,
    event_type: str,
) -> Object:
    """Build an Event whose name is derived from the maintenance, the object and the reason.

    A repeated Event thus has the same name, so that the caller can increment the count of the existing one.
    """
    return build_event(
        _build_name(involved_object, reason, maintenance),
        EVENTS_NAMESPACE,
        involved_object,
        event_type,
        reason,
        message,
        now,
    )


def _build_name(involved_object: Mapping[str, str], reason: str, maintenance: Maintenance) -> str:
    return build_event_name(involved_object["name"], maintenance["metadata"]["uid"], involved_object["kind"], reason)


def build_event_selector(node_name: str, reason: str, maintenance: Maintenance) -> str:
    """Return the field selector for the Event that this maintenance recorded on the node with this reason."""
    return f"metadata.name={_build_name({'kind': 'Node', 'name': node_name}, reason, maintenance)}"


def build_increment_patch(existing: Mapping[str, Any], event: Mapping[str, Any]) -> Object:
    """Build the merge patch that increments the count of an existing Event and updates its message and timestamp."""
    newest = {key: event[key] for key in ("message", "lastTimestamp")}
    return {**newest, "count": (existing.get("count") or 1) + 1}
