"""Tests for the next command that `status` suggests for each state of a maintenance."""

from __future__ import annotations

from typing import Any

import pytest

from console.operations.next_steps import suggest_node_steps, suggest_overview_steps
from kube.paths import Object

FOLLOW, STOP = "kubectl maintenance status node-1 --watch", "kubectl maintenance stop node-1"
FIND_STEP = "kubectl maintenance events --maintenance uid-1"
"""The uid does not select an earlier maintenance with the same name."""
BLOCKED_PODS = [{"namespace": "shop", "name": "web-1", "reason": "DisruptionBudget", "message": "needs 2"}]


def build_maintenance(node: str = "node-1", **status: Any) -> Object:
    return {"metadata": {"name": "disk", "uid": "uid-1"}, "spec": {"nodeName": node}, "status": status}


@pytest.mark.parametrize(
    ("status", "command"),
    [
        ({}, FIND_STEP),
        ({"phase": "Running"}, FOLLOW),
        ({"phase": "Running", "blockedPods": BLOCKED_PODS}, FOLLOW),
        ({"phase": "Running", "lastError": "nodes is forbidden"}, FIND_STEP),
        ({"phase": "Succeeded"}, STOP),
        ({"phase": "Failed", "lastError": "lease lost"}, STOP),
    ],
)
def test_each_state_has_a_next_command(status: Object, command: str) -> None:
    assert [step.command for step in suggest_node_steps("node-1", [build_maintenance(**status)])] == [command]


def test_next_step_of_running_drain_claims_only_that_no_pod_is_blocked() -> None:
    """Check that the text does not rule out other causes, such as functions that do not run."""
    (step,) = suggest_node_steps("node-1", [build_maintenance(phase="Running")])
    assert step.text == "No pod is blocked. To follow the drain"


def test_next_command_without_maintenance_shows_past_maintenances() -> None:
    (step,) = suggest_node_steps("node-1", [])
    assert step.command == "kubectl maintenance events --node node-1 -o tree"


def test_next_command_for_deleted_maintenance_only_watches() -> None:
    ending = build_maintenance(phase="Succeeded")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"

    (step,) = suggest_node_steps("node-1", [ending])

    assert (step.text, step.command) == ("The node is being restored. To follow that", FOLLOW)


def test_same_next_command_is_suggested_once() -> None:
    """Check that two maintenances of a node in the same state have one suggested command."""
    assert len(suggest_node_steps("node-1", [build_maintenance(phase="Running")] * 2)) == 1


def test_overview_suggests_examining_blocked_drain_first() -> None:
    """Check that the overview suggests examining a blocked drain, else stopping a finished one, else watching."""
    blocked = build_maintenance("node-2", phase="Running", blockedPods=BLOCKED_PODS)
    running, drained = build_maintenance(phase="Running"), build_maintenance(phase="Succeeded")

    commands = [
        [step.command for step in suggest_overview_steps(maintenances)]
        for maintenances in ([running, blocked, drained], [running, drained], [drained], [])
    ]

    assert commands == [
        ["kubectl maintenance status node-2"],
        ["kubectl maintenance status --watch"],
        [STOP],
        [],
    ]


@pytest.mark.parametrize(
    ("count", "text", "named"),
    [
        (1, "node-1 is drained. To return it to service after your work", "node-1"),
        (3, "3 nodes are drained. To return them to service after your work", "node-1 node-2 node-3"),
        (
            6,
            "6 nodes are drained. To return the first 5 to service after your work",
            "node-1 node-2 node-3 node-4 node-5",
        ),
    ],
)
def test_overview_suggests_ending_maintenance_of_all_drained_nodes(count: int, text: str, named: str) -> None:
    """Check that the command names each drained node once, or the first five of more nodes."""
    drained = [build_maintenance(f"node-{number}", phase="Succeeded") for number in range(1, count + 1)]

    assert suggest_overview_steps([*drained, drained[0]]) == [(text, f"kubectl maintenance stop {named}")]
