"""Derives a node's lifecycle conditions from its NodeMaintenance, and builds the patch that writes them.

Kubernetes 1.37 reserves the condition types (`k8s.io/api/core/v1`, kubernetes/kubernetes#139993), and KEP-5683 defines
their meaning. Every API server accepts these types, regardless of feature gates. The reasons `AdminRequested` and
`DrainCompleted` are KEP-5683's examples. Other conditions of the node, such as the kubelet's, are not changed.
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
"""Condition type: the node is expected to undergo maintenance."""
DRAIN_IN_PROGRESS = "DrainInProgress"
"""Condition type: the node is being drained."""
DRAINED = "Drained"
"""Condition type: the node meets the drain criteria of the actor that manages its lifecycle."""
MAINTENANCE_IN_PROGRESS = "MaintenanceInProgress"
"""Condition type: the node is undergoing maintenance."""
CONDITION_TYPES = (MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS)

CONDITIONS_LABEL = "nodemaintenance.dev/conditions"
"""Label on a node with this project's conditions; its value is the uid of the NodeMaintenance that they describe.

One patch writes both the label and the conditions, so that `resync` finds all conditions to remove. Nodes without the
label may have another writer's conditions, which are not changed.
"""
MAX_REASON_CHARACTERS = 200
"""Maximum length of the maintenance's reason in a condition, because every client that watches nodes receives it."""


class LifecycleState(Enum):
    """The state of a node whose name is a NodeMaintenance's `spec.nodeName`."""

    WAITING = "the maintenance has not begun"
    NOT_CORDONED = "the maintenance has begun, and the node is not cordoned and tainted"
    DRAINING = "the node is cordoned and tainted, and pods remain that must leave"
    DRAINED = "the node is drained"


class Observation(NamedTuple):
    """The status and the reason of a condition."""

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
"""The conditions of a node in each state.

KEP-5683 allows maintenance of a node only after `Drained`. The maintenance is therefore planned until then.
"""


def select_maintenance(maintenances: Iterable[Maintenance], node: Node) -> Maintenance | None:
    """Return the maintenance that the node's conditions must describe; None if the conditions must be removed.

    A maintenance that has begun on this node takes precedence over those that wait, and an older one over a newer one.
    `maintenances` are those that name the node, oldest first. A maintenance is ignored if it is being deleted or has
    lost the node's Lease. It is also ignored if it began on an earlier node with the same name.
    """
    candidates = [item for item in maintenances if is_candidate(item)]
    begun = [item for item in candidates if m.has_begun(item) and m.has_begun_on(item, node)]
    waiting = [item for item in candidates if not m.has_begun(item)]
    return next(iter([*begun, *waiting]), None)


def is_candidate(maintenance: Maintenance) -> bool:
    """Return whether a node's conditions may describe the maintenance."""
    return not m.is_deleting(maintenance) and not m.has_lost_lease(maintenance)


def classify_node(maintenance: Maintenance, node: Node) -> LifecycleState:
    """Return the state of the node that the maintenance names.

    The cordon is read from the node itself, so that a failed or reverted cordon is never reported as a drain. Whether
    the node is drained is known only from the maintenance's status.
    """
    if not m.has_begun(maintenance):
        return LifecycleState.WAITING
    if not is_cordoned_and_tainted(node, m.get_group(maintenance).drain_taint):
        return LifecycleState.NOT_CORDONED
    return LifecycleState.DRAINED if m.is_reported_drained(maintenance) else LifecycleState.DRAINING


def build_conditions_patch(node: Node, maintenance: Maintenance | None, now: datetime) -> Object:
    """Build the strategic merge patch for `nodes/status`; {} if nothing would change.

    `maintenance` is the result of `select_maintenance`. If it is None, the patch removes the conditions, but only if
    the label shows that this project wrote them. The API server rejects the patch if the node has changed since it was
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
    """Return the conditions whose status, reason or message differs from the node's current condition."""
    message, changed = _build_condition_message(maintenance), []
    for condition_type, observation in CONDITIONS_BY_STATE[classify_node(maintenance, node)].items():
        fields = {
            "status": "True" if observation.is_true else "False",
            "reason": observation.reason,
            "message": message,
        }
        before = current.get(condition_type, {})
        if any(before.get(name) != value for name, value in fields.items()):
            changed.append({"type": condition_type, **fields, **_build_condition_times(before, fields["status"], now)})
    return changed


def _build_condition_times(before: Mapping[str, Any], status: str, now: datetime) -> Object:
    """Return the times of a changed condition; the transition time changes only if the status changes."""
    transition_time = before.get("lastTransitionTime") if before.get("status") == status else None
    return {"lastHeartbeatTime": format_time(now), "lastTransitionTime": transition_time or format_time(now)}


def _build_condition_message(maintenance: Maintenance) -> str:
    """Return the message of all conditions, which contains the name and the reason of the maintenance."""
    reason = truncate(str(m.get_spec(maintenance).get("reason") or ""), MAX_REASON_CHARACTERS)
    name = f'NodeMaintenance "{maintenance["metadata"]["name"]}"'
    return f"{name}: {reason}" if reason else name


def trim_node_to_conditions(node: Object) -> Object:
    """Return the fields of a node that `build_conditions_patch` needs.

    `resync` keeps the list of all nodes under maintenance in memory.
    """
    return {**trim_node(node), "status": {"conditions": node.get("status", {}).get("conditions") or []}}
