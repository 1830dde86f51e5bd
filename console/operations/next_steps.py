"""Suggests an administrator's next steps for maintenances, each as a text and a command. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from console.operations.descriptions import PHASE_FAILING, PHASE_WAITING, get_phase_label
from kube.maintenance.objects import FAILED, SUCCEEDED, Maintenance, get_node_name, get_status, is_deleting

MAX_NAMED_NODES = 5
"""Maximum number of nodes that a suggested command names, so that it stays short."""


class NextStep(NamedTuple):
    """A suggested next step: its text and its command."""

    text: str
    command: str

    @property
    def is_watch(self) -> bool:
        """Return whether the command only watches maintenances."""
        return self.command.endswith("--watch")


def suggest_node_steps(node: str, maintenances: Sequence[Maintenance]) -> list[NextStep]:
    """Return the next step for each maintenance of the node, without duplicates.

    If there is no maintenance, suggest how to see past maintenances.
    """
    if not maintenances:
        return [NextStep("To see past maintenances", f"kubectl maintenance events --node {node} -o tree")]
    return list(dict.fromkeys(map(_suggest_step, maintenances)))


def suggest_overview_steps(maintenances: Sequence[Maintenance]) -> list[NextStep]:
    """Return the most important next step for all maintenances; an empty list if there are none.

    It concerns the first blocked or failed maintenance. If all nodes are drained, it concerns all of them; the command
    names at most `MAX_NAMED_NODES`. Otherwise it suggests to watch the drains.
    """
    stuck = [item for item in maintenances if _is_blocked(item) or get_phase_label(item) in (FAILED, PHASE_FAILING)]
    if stuck:
        node = get_node_name(stuck[0])
        return [NextStep(f"To see what blocks {node}, and what unblocks it", f"kubectl maintenance status {node}")]
    drained = [item for item in maintenances if get_phase_label(item) == SUCCEEDED]
    if drained and len(drained) == len(maintenances):
        return [_suggest_stop(list(dict.fromkeys(map(get_node_name, drained))))]
    return [NextStep("To follow the drains", "kubectl maintenance status --watch")] if maintenances else []


def _suggest_step(maintenance: Maintenance) -> NextStep:
    node, phase, uid = get_node_name(maintenance), get_phase_label(maintenance), maintenance["metadata"]["uid"]
    follow, stop = f"kubectl maintenance status {node} --watch", f"kubectl maintenance stop {node}"
    if is_deleting(maintenance):
        return NextStep("The node is being restored. To follow that", follow)
    if phase == SUCCEEDED:
        return _suggest_stop([node])
    if phase == FAILED:
        return NextStep("The maintenance has failed. To return the node to service, and then to start again", stop)
    if phase in (PHASE_FAILING, PHASE_WAITING):
        # Not the name, which also selects the events of earlier maintenances.
        return NextStep("To find the step that failed or is missing", f"kubectl maintenance events --maintenance {uid}")
    if _is_blocked(maintenance):
        return NextStep("The drain continues as soon as the pods are unblocked. To follow it", follow)
    return NextStep("No pod is blocked. To follow the drain", follow)


def _suggest_stop(nodes: Sequence[str]) -> NextStep:
    """Return the step that returns these drained nodes to service; its command names only the first ones of many."""
    named = nodes[:MAX_NAMED_NODES]
    command = f"kubectl maintenance stop {' '.join(named)}"
    if len(nodes) == 1:
        return NextStep(f"{nodes[0]} is drained. To return it to service after your work", command)
    target = "them" if len(named) == len(nodes) else f"the first {len(named)}"
    return NextStep(f"{len(nodes)} nodes are drained. To return {target} to service after your work", command)


def _is_blocked(maintenance: Maintenance) -> bool:
    return bool(get_status(maintenance).get("blockedPods"))
