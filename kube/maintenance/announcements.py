"""Kubernetes Events about nodes and maintenances, as `kubectl describe` finds them (OSV-12, NMO-27). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kube.announcements import NORMAL, WARNING, event, event_name
from kube.maintenance.objects import Maintenance, node_name
from kube.paths import Object, events_path

NAMESPACE = "default"
"""Events of cluster-scoped objects live here."""
EVENTS = events_path(NAMESPACE)
BEGIN, SUCCEED, FAIL, REMOVE = "BeginMaintenance", "SucceedMaintenance", "FailedMaintenance", "RemovedMaintenance"
CORDON, UNCORDON = "CordonNode", "UncordonNode"
"""Words of our own: the kubelet's NodeNotSchedulable and NodeSchedulable may come ten seconds later (OSV-12a)."""
TEXTS = {
    BEGIN: "Begin a node maintenance",
    SUCCEED: "Node maintenance was succeeded",
    FAIL: "Failed a node maintenance",
    REMOVE: "Removed a node maintenance",
    CORDON: "Cordon a node",
    UNCORDON: "Uncordon a node",
}
"""Reason → message, as the medik8s operator words them; what else is known follows a colon."""


def node_event(
    node: str, reason: str, message: str, maintenance: Maintenance, now: datetime, *, kind: str = NORMAL
) -> Object:
    """An Event about a node."""
    # kubectl describe looks Events of nodes up by name in place of the uid, as kubelets write them
    about_it = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    return _event(about_it, reason, message, maintenance, now, kind)


def maintenance_events(reason: str, detail: str, maintenance: Maintenance, now: datetime) -> list[Object]:
    """The Events about a maintenance and about its node that say what became of the maintenance (NMO-27).

    `detail` follows the reason's own text; a failure is a Warning.
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
    """An Event named by maintenance, object and reason: announced again, it is counted, and there is one."""
    return event(_name(involved, reason, maintenance), NAMESPACE, involved, kind, reason, message, now)


def _name(involved: Mapping[str, str], reason: str, maintenance: Maintenance) -> str:
    return event_name(involved["name"], maintenance["metadata"]["uid"], involved["kind"], reason)


def this_one(node: str, reason: str, maintenance: Maintenance) -> str:
    """Field selector for the Event about a node that this maintenance announced with this reason."""
    return f"metadata.name={_name({'kind': 'Node', 'name': node}, reason, maintenance)}"


def counted_again(known: Mapping[str, Any], event: Mapping[str, Any]) -> Object:
    """Merge patch that counts an Event that is there already once more."""
    newest = {key: event[key] for key in ("message", "lastTimestamp")}
    return {**newest, "count": (known.get("count") or 1) + 1}
