"""Builds the steps of a maintenance, from "Cordoned" to "Returned", for the node's page. Pure functions.

The steps are derived from the node and the NodeMaintenance, without recorded events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from console.operations.descriptions import find_error_not_in_blocked_pods, is_step_failing
from console.web.node_rows import NodeFacts
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import (
    FAILED,
    SUCCEEDED,
    Maintenance,
    get_condition,
    get_phase,
    get_status,
    is_deleting,
    is_reported_cordoned,
)
from kube.nodes import NO_SCHEDULE
from kube.text_limits import format_count

DONE, CURRENT, BLOCKED, STEP_FAILED, PENDING = "done", "current", "blocked", "failed", "pending"
"""States of a step, which are also its CSS classes."""
EVICTION_INDEX = 2
"""Index of the eviction in the list of steps."""


@dataclass(frozen=True)
class Step:
    """A step of a maintenance, as the node's page shows it.

    Attributes:
        label: Text of the step, such as `Evicting 5 of 8`.
        state: DONE, CURRENT, BLOCKED, STEP_FAILED or PENDING.
        detail: Additional text, such as `3 pods blocked`, or "".
        at: Time at which the step was completed (RFC 3339), "" if unknown.
    """

    label: str
    state: str
    detail: str = ""
    at: str = ""


def build_steps(maintenance: Maintenance, node: NodeFacts | None) -> list[Step]:
    """Return the steps in order; the first incomplete step is current, blocked or failed.

    If the maintenance is being deleted, the last step is current or failed, and other incomplete steps are pending.
    """
    cordoned_at = _get_condition_time(maintenance, "Cordoned")
    drained_at = _get_condition_time(maintenance, "Drained")
    is_drained = get_phase(maintenance) == SUCCEEDED
    is_cordoned, is_tainted = _find_node_changes(maintenance, node)
    steps = [
        Step("Cordoned", DONE if is_cordoned else PENDING, at=cordoned_at),
        Step("Tainted", DONE if is_tainted else PENDING, at=cordoned_at),
        _build_eviction_step(maintenance, is_drained=is_drained),
        Step("Drained", DONE if is_drained else PENDING, at=drained_at),
        Step("Returned", PENDING),
    ]
    if is_deleting(maintenance):
        failed = bool(find_error_not_in_blocked_pods(get_status(maintenance)))
        return [*steps[:-1], Step("Returning", STEP_FAILED if failed else CURRENT)]
    return _mark_first_open_step(steps, maintenance)


def _get_condition_time(maintenance: Maintenance, condition_type: str) -> str:
    """Return the time at which the condition became true, or "" if it is not true."""
    condition = get_condition(maintenance, condition_type)
    return str(condition.get("lastTransitionTime") or "") if condition.get("status") == "True" else ""


def _find_node_changes(maintenance: Maintenance, node: NodeFacts | None) -> tuple[bool, bool]:
    """Return whether the maintenance has cordoned the node, and whether it has tainted the node.

    The node's own fields are newer than the maintenance's status. While the node is being restored, its fields change,
    so the function uses the status.
    """
    if is_deleting(maintenance) or node is None:
        is_reported = is_reported_cordoned(maintenance)
        return is_reported, is_reported
    drain_taint = f"{GROUPS[maintenance['apiVersion']].drain_taint}:{NO_SCHEDULE}"
    has_begun = bool(get_phase(maintenance)) and get_phase(maintenance) != FAILED
    return has_begun and node.is_cordoned, has_begun and drain_taint in node.taints


def _build_eviction_step(maintenance: Maintenance, *, is_drained: bool) -> Step:
    """Return the eviction step, with the number of evicted pods if the status has counts."""
    status = get_status(maintenance)
    if "evictionPods" not in status:
        return Step("Evicting", DONE if is_drained else PENDING)
    total, pending = int(status["evictionPods"]), len(status.get("pendingPods") or [])
    if is_drained:
        return Step(f"Evicted {total} of {total}" if total else "No pods to evict", DONE)
    return Step(f"Evicting {max(0, total - pending)} of {total}", PENDING)


def _mark_first_open_step(steps: Sequence[Step], maintenance: Maintenance) -> list[Step]:
    """Return the steps, with the first incomplete step marked as current, blocked or failed.

    After the drain, the last step stays pending, because the node returns only when an administrator ends the
    maintenance.
    """
    index = next(index for index, step in enumerate(steps) if step.state != DONE)
    blocked_count = len(get_status(maintenance).get("blockedPods") or [])
    if get_phase(maintenance) == FAILED or is_step_failing(maintenance):
        marked = replace(steps[index], state=STEP_FAILED, detail="failed")
    elif index == len(steps) - 1:
        marked = replace(steps[index], detail="when you stop the maintenance")
    elif blocked_count and index == EVICTION_INDEX:
        marked = replace(steps[index], state=BLOCKED, detail=f"{format_count(blocked_count, 'pod')} blocked")
    else:
        marked = replace(steps[index], state=CURRENT)
    return [*steps[:index], marked, *steps[index + 1 :]]
