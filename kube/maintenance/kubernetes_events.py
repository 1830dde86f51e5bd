"""Builds the content of Kubernetes Events about nodes and maintenances (OSV-12, NMO-27)."""

from __future__ import annotations

from dataclasses import replace

from kube.kubernetes_events import CLUSTER_SCOPED_NAMESPACE, NORMAL_TYPE, WARNING_TYPE, KubernetesEvent
from kube.maintenance.escalation import ACTION_EFFECTS, EscalationStep
from kube.maintenance.objects import Maintenance, get_node_name
from kube.paths import build_events_path, encode_path_segment

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
CORDONED_AGAIN_REASON = "NodeCordonedAgain"
DEADLINE_REASON, ESCALATE_REASON = "DrainDeadlineExceeded", "EscalateDrain"
EVENT_MESSAGES = {
    BEGIN_REASON: "Begin a node maintenance",
    SUCCEED_REASON: "Node maintenance was succeeded",
    FAIL_REASON: "Failed a node maintenance",
    REMOVE_REASON: "Removed a node maintenance",
    CORDON_REASON: "Cordon a node",
    UNCORDON_REASON: "Uncordon a node",
    DEADLINE_REASON: "The drain has not finished within spec.drain.deadline",
    ESCALATE_REASON: "The drain escalates",
}
"""Message of each Event reason, in the medik8s operator's wording if it has one; details follow after a colon."""
WARNING_REASONS = (FAIL_REASON, DEADLINE_REASON, ESCALATE_REASON)
"""Reasons of the Warnings about a maintenance; all other reasons are Normal."""


def build_node_kubernetes_event(
    node_name: str, reason: str, maintenance: Maintenance, message: str = "", *, event_type: str = NORMAL_TYPE
) -> KubernetesEvent:
    """Build the content of an Event about a node; the default message is that of the reason in `EVENT_MESSAGES`."""
    regarding = {"apiVersion": "v1", "kind": "Node", "name": node_name}
    return _build_counted_event(regarding, reason, message or EVENT_MESSAGES[reason], maintenance, event_type)


def build_cordoned_again_event(maintenance: Maintenance, drift: str) -> KubernetesEvent:
    """Build the Warning that the product cordons the node again; the Event's count is the number of these repairs.

    `drift` states what another client did with the node.
    """
    node_name, name = get_node_name(maintenance), maintenance["metadata"]["name"]
    message = (
        f'node "{node_name}" was {drift} during maintenance "{name}"; cordoning it again; '
        f"to end the maintenance, run kubectl maintenance stop {node_name}"
    )
    return build_node_kubernetes_event(node_name, CORDONED_AGAIN_REASON, maintenance, message, event_type=WARNING_TYPE)


def build_cordoned_again_event_path(maintenance: Maintenance) -> str:
    """Return the API path of the Event that counts the repairs of the maintenance's node."""
    return f"{EVENTS_PATH}/{encode_path_segment(build_cordoned_again_event(maintenance, '').event_name)}"


def build_progress_events(reason: str, maintenance: Maintenance, detail: str = "") -> list[KubernetesEvent]:
    """Build the Events on a maintenance and on its node that report the maintenance's progress (NMO-27).

    `detail` is appended to the message of the reason.
    """
    metadata, node_name = maintenance["metadata"], get_node_name(maintenance)
    message = f"{EVENT_MESSAGES[reason]}: {detail}" if detail else EVENT_MESSAGES[reason]
    event_type = WARNING_TYPE if reason in WARNING_REASONS else NORMAL_TYPE
    regarding = {"apiVersion": maintenance["apiVersion"], "kind": "NodeMaintenance"}
    regarding |= {key: metadata[key] for key in ("name", "uid")}
    kubernetes_events = [_build_counted_event(regarding, reason, message, maintenance, event_type)]
    if node_name:
        kubernetes_events.append(
            build_node_kubernetes_event(node_name, reason, maintenance, message, event_type=event_type)
        )
    return kubernetes_events


def build_escalation_events(maintenance: Maintenance, step: EscalationStep) -> list[KubernetesEvent]:
    """Build the Events that report an escalation step; each step has its own Events."""
    detail = f"step {step.action}, {step.after} after its start: {ACTION_EFFECTS[step.action]}"
    kubernetes_events = build_progress_events(ESCALATE_REASON, maintenance, detail)
    return [
        replace(kubernetes_event, series=f"{kubernetes_event.series}/{step.action}/{step.after}")
        for kubernetes_event in kubernetes_events
    ]


def _build_counted_event(
    regarding: dict[str, str], reason: str, message: str, maintenance: Maintenance, event_type: str
) -> KubernetesEvent:
    """Build the content of an Event; repeating it for the same maintenance increments the count of one Event."""
    return KubernetesEvent(regarding, reason, message, event_type, series=maintenance["metadata"]["uid"])
