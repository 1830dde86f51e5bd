"""Derives the lifecycle conditions of a node from its NodeMaintenance, and builds the patch that writes them.

Kubernetes 1.37 reserves the condition types (`k8s.io/api/core/v1`, kubernetes/kubernetes#139993), and KEP-5683 defines
their meaning. Any API server accepts them, whatever its feature gates. KEP-5683 gives `AdminRequested` and
`DrainCompleted` as examples of reasons. The functions change no other condition, such as those of the kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from kube.maintenance import objects as m
from kube.maintenance.objects import Maintenance
from kube.nodes import Node, is_cordoned_and_tainted
from kube.paths import Object
from kube.text_limits import truncate
from kube.times import format_time
from kube.trimming import trim_node

MAINTENANCE_PLANNED = "MaintenancePlanned"
"""The node is expected to undergo maintenance."""
DRAIN_IN_PROGRESS = "DrainInProgress"
"""The node is actively being drained."""
DRAINED = "Drained"
"""The node has reached the drain criteria of the actor that manages its lifecycle."""
MAINTENANCE_IN_PROGRESS = "MaintenanceInProgress"
"""The node is actively undergoing maintenance."""
CONDITION_TYPES = (MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS)

CONDITIONS_LABEL = "nodemaintenance.dev/conditions"
"""Label on a node with our conditions; its value is the uid of the NodeMaintenance that they describe.

The same patch writes the label and the conditions, so that a tick finds all conditions that must be removed. Nodes
without the label may have conditions of other writers, which stay unchanged.
"""
MAX_REASON_CHARACTERS = 200
"""Maximum length of the maintenance's reason in a message: every watcher of nodes receives each condition."""


class LifecycleState(Enum):
    """State of a node that a NodeMaintenance names."""

    WAITING = "the maintenance has not begun"
    NOT_CORDONED = "the maintenance has begun, and the node is not cordoned and tainted"
    DRAINING = "the node is cordoned and tainted, and pods remain that must leave"
    DRAINED = "the node is drained"


class Observation(NamedTuple):
    """Status and reason of a condition."""

    is_true: bool
    reason: str


CONDITIONS_BY_STATE: Mapping[LifecycleState, Mapping[str, Observation]] = {
    LifecycleState.WAITING: {
        MAINTENANCE_PLANNED: Observation(True, "AdminRequested"),
        DRAIN_IN_PROGRESS: Observation(False, "MaintenanceNotBegun"),
        DRAINED: Observation(False, "MaintenanceNotBegun"),
        MAINTENANCE_IN_PROGRESS: Observation(False, "MaintenanceNotBegun"),
    },
    LifecycleState.NOT_CORDONED: {
        MAINTENANCE_PLANNED: Observation(True, "AdminRequested"),
        DRAIN_IN_PROGRESS: Observation(False, "NodeNotCordoned"),
        DRAINED: Observation(False, "NodeNotCordoned"),
        MAINTENANCE_IN_PROGRESS: Observation(False, "NodeNotDrained"),
    },
    LifecycleState.DRAINING: {
        MAINTENANCE_PLANNED: Observation(True, "AdminRequested"),
        DRAIN_IN_PROGRESS: Observation(True, "AdminRequested"),
        DRAINED: Observation(False, "DrainInProgress"),
        MAINTENANCE_IN_PROGRESS: Observation(False, "NodeNotDrained"),
    },
    LifecycleState.DRAINED: {
        MAINTENANCE_PLANNED: Observation(False, "MaintenanceInProgress"),
        DRAIN_IN_PROGRESS: Observation(False, "DrainCompleted"),
        DRAINED: Observation(True, "DrainCompleted"),
        MAINTENANCE_IN_PROGRESS: Observation(True, "AdminRequested"),
    },
}
"""The conditions of each state.

KEP-5683 lets a node enter maintenance after `Drained`. The maintenance is therefore planned until the node is drained.
"""


def select_maintenance(maintenances: Iterable[Maintenance], node: Node) -> Maintenance | None:
    """Return the maintenance that the node's conditions describe; None if the conditions must be removed.

    The maintenance that has begun on this node takes precedence over those that wait, and an older one over a newer
    one. `maintenances` are those that name the node, oldest first. A maintenance does not count if it is being deleted,
    if it has lost the node's lease, or if it began on an earlier node with the same name.
    """
    candidates = [item for item in maintenances if is_candidate(item)]
    begun = [item for item in candidates if m.has_begun(item) and m.has_begun_on(item, node)]
    waiting = [item for item in candidates if not m.has_begun(item)]
    return next(iter([*begun, *waiting]), None)


def is_candidate(maintenance: Maintenance) -> bool:
    """Return whether the conditions of some node may describe the maintenance."""
    return not m.is_deleting(maintenance) and not m.has_lost_lease(maintenance)


def classify_node(maintenance: Maintenance, node: Node) -> LifecycleState:
    """Return the state of the node that the maintenance names.

    The node itself proves the cordon, so that a cordon that failed or was reverted is never reported as a drain. Only
    the status of the maintenance proves that the node is drained.
    """
    if not m.has_begun(maintenance):
        return LifecycleState.WAITING
    if not is_cordoned_and_tainted(node, m.get_group(maintenance).drain_taint):
        return LifecycleState.NOT_CORDONED
    return LifecycleState.DRAINED if m.is_reported_drained(maintenance) else LifecycleState.DRAINING


def build_conditions_patch(node: Node, maintenance: Maintenance | None, now: datetime) -> Object:
    """Build the strategic merge patch for `nodes/status`; {} if nothing would change.

    `maintenance` is the result of `select_maintenance`. If it is None, the patch removes the conditions, provided that
    the label shows that this product wrote them. The API server rejects the patch if the node has changed since it was
    read (design rule 12).
    """
    label = (node["metadata"].get("labels") or {}).get(CONDITIONS_LABEL)
    current = {item["type"]: item for item in node.get("status", {}).get("conditions") or []}
    uid = maintenance["metadata"]["uid"] if maintenance else None
    if maintenance is None:
        removed = [item for item in CONDITION_TYPES if item in current] if label is not None else []
        changed: list[Object] = [{"$patch": "delete", "type": item} for item in removed]
    else:
        changed = _build_changed_conditions(current, maintenance, node, now)
    if not changed and label == uid:
        return {}
    metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "labels": {CONDITIONS_LABEL: uid}}
    return {"metadata": metadata, **({"status": {"conditions": changed}} if changed else {})}


def _build_changed_conditions(
    current: Mapping[str, Mapping[str, Any]], maintenance: Maintenance, node: Node, now: datetime
) -> list[Object]:
    """Return the conditions whose status, reason or message differs from the node's."""
    message, changed = _build_message(maintenance), []
    for condition_type, observation in CONDITIONS_BY_STATE[classify_node(maintenance, node)].items():
        fields = {
            "status": "True" if observation.is_true else "False",
            "reason": observation.reason,
            "message": message,
        }
        before = current.get(condition_type, {})
        if any(before.get(name) != value for name, value in fields.items()):
            changed.append({"type": condition_type, **fields, **_build_times(before, fields["status"], now)})
    return changed


def _build_times(before: Mapping[str, Any], status: str, now: datetime) -> Object:
    """Return the times of a changed condition; the time of the transition changes only with the status."""
    transition_time = before.get("lastTransitionTime") if before.get("status") == status else None
    return {"lastHeartbeatTime": format_time(now), "lastTransitionTime": transition_time or format_time(now)}


def _build_message(maintenance: Maintenance) -> str:
    """Return the message of all conditions: the maintenance and its reason."""
    reason = truncate(str(m.get_spec(maintenance).get("reason") or ""), MAX_REASON_CHARACTERS)
    name = f'NodeMaintenance "{maintenance["metadata"]["name"]}"'
    return f"{name}: {reason}" if reason else name


def trim_node_to_conditions(node: Object) -> Object:
    """Return the fields of a node from which `build_conditions_patch` builds its patch.

    A list of all nodes under maintenance is kept in memory during a tick.
    """
    return {**trim_node(node), "status": {"conditions": node.get("status", {}).get("conditions") or []}}
