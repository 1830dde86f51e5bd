"""Builds the Kubernetes Events about nodes and maintenances that `kubectl describe` shows (OSV-12, NMO-27)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kube.kubernetes_events import NORMAL, WARNING, event, event_name
from kube.maintenance.objects import Maintenance, node_name
from kube.paths import Object, events_path

NAMESPACE = "default"
"""Namespace that holds the Events of cluster-scoped objects."""
EVENTS = events_path(NAMESPACE)
BEGIN, SUCCEED, FAIL, REMOVE = "BeginMaintenance", "SucceedMaintenance", "FailedMaintenance", "RemovedMaintenance"
CORDON, UNCORDON = "CordonNode", "UncordonNode"
"""Distinct from the kubelet's NodeNotSchedulable and NodeSchedulable, which may follow ten seconds later (OSV-12a)."""
TEXTS = {
    BEGIN: "Begin a node maintenance",
    SUCCEED: "Node maintenance was succeeded",
    FAIL: "Failed a node maintenance",
    REMOVE: "Removed a node maintenance",
    CORDON: "Cordon a node",
    UNCORDON: "Uncordon a node",
}
"""Reason → message, in the medik8s operator's wording; a detail follows after a colon."""


def node_event(
    node: str, reason: str, message: str, maintenance: Maintenance, now: datetime, *, kind: str = NORMAL
) -> Object:
    """Build an Event about a node."""
    # `kubectl describe node` finds Events by the node's name in place of its uid, as kubelets write them
    about_it = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    return _event(about_it, reason, message, maintenance, now, kind)


def maintenance_events(reason: str, detail: str, maintenance: Maintenance, now: datetime) -> list[Object]:
    """Build the Events about a maintenance and its node that report how the maintenance proceeds (NMO-27).

    `detail` follows the reason's message. The Events are Warnings if the maintenance failed.
    """
    metadata = maintenance["metadata"]
    message = f"{TEXTS[reason]}: {detail}" if detail else TEXTS[reason]
    kind = WARNING if reason == FAIL else NORMAL
    itself = {"kind": "NodeMaintenance", **{key: metadata[key] for key in ("name", "uid")}}
    events = [_event({"apiVersion": maintenance["apiVersion"], **itself}, reason, message, maintenance, now, kind)]
    node = node_name(maintenance)
    return [*events, node_event(node, reason, message, maintenance, now, kind=kind)] if node else events


def _event(
    involved: Mapping[str, str], reason: str, message: str, maintenance: Maintenance, now: datetime, kind: str
) -> Object:
    """Build an Event whose name is derived from the maintenance, the object and the reason.

    A repeated Event thus has the same name, so the caller can increase the count of the existing one.
    """
    return event(_name(involved, reason, maintenance), NAMESPACE, involved, kind, reason, message, now)


def _name(involved: Mapping[str, str], reason: str, maintenance: Maintenance) -> str:
    return event_name(involved["name"], maintenance["metadata"]["uid"], involved["kind"], reason)


def this_one(node: str, reason: str, maintenance: Maintenance) -> str:
    """Return the field selector for the Event that this maintenance recorded on the node with this reason."""
    return f"metadata.name={_name({'kind': 'Node', 'name': node}, reason, maintenance)}"


def counted_again(known: Mapping[str, Any], event: Mapping[str, Any]) -> Object:
    """Build the merge patch that increases the count of an existing Event and updates its message and timestamp."""
    newest = {key: event[key] for key in ("message", "lastTimestamp")}
    return {**newest, "count": (known.get("count") or 1) + 1}
