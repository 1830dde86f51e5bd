"""Tests for the list of a maintenance's steps on the node's page."""

from __future__ import annotations

from typing import Any

import pytest

from console.web.maintenance_steps import build_steps
from console.web.node_rows import NodeFacts
from tests.kube.samples import make_maintenance

READY_NODE = NodeFacts("node-1", is_ready=True, is_cordoned=False, version="", taints=())
CORDONED_NODE = NodeFacts("node-1", is_ready=True, is_cordoned=True, version="", taints=())
TAINTED_NODE = NodeFacts("node-1", is_ready=True, is_cordoned=True, version="", taints=("medik8s.io/drain:NoSchedule",))
COUNTS = {"evictionPods": 8, "drainProgress": 62, "pendingPods": ["web-1", "web-2", "web-3"]}
BLOCKED_POD = {"namespace": "default", "name": "web-1", "reason": "DisruptionBudget", "message": "budget web needs 2"}
CORDONED_CONDITION = {"type": "Cordoned", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}
DRAINED_CONDITION = {"type": "Drained", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}


@pytest.mark.parametrize(
    ("node", "status", "expected_states", "expected_label"),
    [
        (READY_NODE, None, "current pending pending pending pending", "Evicting"),
        (CORDONED_NODE, {"phase": "Running", **COUNTS}, "done current pending pending pending", "Evicting 5 of 8"),
        (TAINTED_NODE, {"phase": "Running", **COUNTS}, "done done current pending pending", "Evicting 5 of 8"),
        (
            TAINTED_NODE,
            {"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD]},
            "done done blocked pending pending",
            "Evicting 5 of 8",
        ),
        (
            TAINTED_NODE,
            {"phase": "Running", **COUNTS, "lastError": "pods is forbidden"},
            "done done failed pending pending",
            "Evicting 5 of 8",
        ),
        (TAINTED_NODE, {"phase": "Succeeded", "evictionPods": 8}, "done done done done pending", "Evicted 8 of 8"),
        (None, {"phase": "Failed", "lastError": "no node"}, "failed pending pending pending pending", "Evicting"),
    ],
    ids=["begins", "cordoned", "evicting", "blocked", "step failed", "drained", "no node"],
)
def test_first_unfinished_step_is_marked(
    node: NodeFacts | None, status: dict[str, Any] | None, expected_states: str, expected_label: str
) -> None:
    """OSV-9: the first unfinished step is marked as current, blocked or failed, and shows the number of pods."""
    steps = build_steps(make_maintenance(status), node)

    assert " ".join(step.state for step in steps) == expected_states
    assert steps[2].label == expected_label


def test_last_step_is_current_while_node_is_restored() -> None:
    """Check that the last step of a deleted maintenance is current, and that steps that did not happen are pending."""
    maintenance = make_maintenance({"phase": "Running", **COUNTS, "conditions": [CORDONED_CONDITION]})
    maintenance["metadata"]["deletionTimestamp"] = "2026-01-01T00:02:00Z"

    steps = build_steps(maintenance, READY_NODE)

    assert [step.state for step in steps] == ["done", "done", "pending", "pending", "current"]
    assert steps[-1].label == "Returning"


def test_last_step_is_failed_if_node_cannot_be_restored() -> None:
    """Check that the last step is marked as failed if the status reports that the node could not be restored."""
    maintenance = make_maintenance({"phase": "Succeeded", "lastError": "the node is not restored: forbidden"})
    maintenance["metadata"]["deletionTimestamp"] = "2026-01-01T00:02:00Z"

    assert build_steps(maintenance, TAINTED_NODE)[-1].state == "failed"


def test_completed_steps_have_times_of_conditions() -> None:
    """Check that completed steps show the times of their conditions, and blocked steps the number of blocked pods."""
    conditions = [CORDONED_CONDITION, DRAINED_CONDITION]

    drained = build_steps(make_maintenance({"phase": "Succeeded", **COUNTS, "conditions": conditions}), TAINTED_NODE)
    blocked = build_steps(make_maintenance({"phase": "Running", **COUNTS, "blockedPods": [BLOCKED_POD]}), TAINTED_NODE)

    assert (drained[0].at, drained[3].at) == ("2026-01-01T00:00:05Z", "2026-01-01T00:01:00Z")
    assert drained[4].detail == "when you stop the maintenance"
    assert blocked[2].detail == "1 pod blocked"
