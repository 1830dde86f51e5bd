"""Kubernetes Events about nodes and maintenances that `kubectl describe` shows (OSV-12, NMO-27)."""

from __future__ import annotations

from kube.kubernetes_events import CLUSTER_SCOPED_NAMESPACE, NORMAL_TYPE, WARNING_TYPE, EventNotice
from kube.maintenance.objects import Maintenance, get_node_name
from kube.paths import build_events_path

EVENTS_PATH = build_events_path(CLUSTER_SCOPED_NAMESPACE)
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


def build_node_notice(
    node_name: str, reason: str, maintenance: Maintenance, message: str = "", *, event_type: str = NORMAL_TYPE
) -> EventNotice:
    """Build a notice about a node; by default, its message is that of `EVENT_MESSAGES`."""
    regarding = {"apiVersion": "v1", "kind": "Node", "name": node_name}
    return _build_notice(regarding, reason, message or EVENT_MESSAGES[reason], maintenance, event_type)


def build_progress_notices(reason: str, maintenance: Maintenance, detail: str = "") -> list[EventNotice]:
    """Build the notices about a maintenance and its node that report the maintenance's progress (NMO-27).

    `detail` follows the reason's message. The notices are Warnings if the maintenance failed.
    """
    metadata, node_name = maintenance["metadata"], get_node_name(maintenance)
    message = f"{EVENT_MESSAGES[reason]}: {detail}" if detail else EVENT_MESSAGES[reason]
    event_type = WARNING_TYPE if reason == FAIL_REASON else NORMAL_TYPE
    regarding = {"apiVersion": maintenance["apiVersion"], "kind": "NodeMaintenance"}
    regarding |= {key: metadata[key] for key in ("name", "uid")}
    notices = [_build_notice(regarding, reason, message, maintenance, event_type)]
    if node_name:
        notices.append(build_node_notice(node_name, reason, maintenance, message, event_type=event_type))
    return notices


def _build_notice(
    regarding: dict[str, str], reason: str, message: str, maintenance: Maintenance, event_type: str
) -> EventNotice:
    """Build a notice whose repetition for the same maintenance increments the count of its Event."""
    return EventNotice(regarding, reason, message, event_type, series=maintenance["metadata"]["uid"])
