"""Tests for a node's conditions from the beginning of its maintenance to its end."""

from __future__ import annotations

from kube.maintenance.groups import MEDIK8S
from kube.node_conditions.conditions import (
    CONDITION_TYPES,
    CONDITIONS_LABEL,
    DRAIN_IN_PROGRESS,
    DRAINED,
    MAINTENANCE_IN_PROGRESS,
    MAINTENANCE_PLANNED,
)
from kube.nodes import build_node_path, is_cordoned_and_tainted
from kube.paths import Object
from tests.chain.environment import EventChainEnvironment

ORDER = (
    frozenset[str](),
    frozenset({MAINTENANCE_PLANNED}),
    frozenset({MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS}),
    frozenset({DRAINED, MAINTENANCE_IN_PROGRESS}),
)
"""The maintenance conditions that are True in each state, in the order of the states."""


def get_true_conditions(node: Object) -> frozenset[str]:
    """Return the types of the maintenance conditions that are True."""
    return frozenset(
        item["type"]
        for item in node["status"]["conditions"]
        if item["type"] in CONDITION_TYPES and item["status"] == "True"
    )


def get_maintenance_conditions(node: Object) -> list[Object]:
    """Return the four maintenance conditions with all their fields."""
    return [item for item in node["status"]["conditions"] if item["type"] in CONDITION_TYPES]


def has_no_conditions(node: Object) -> bool:
    """Return whether the node has neither the maintenance label nor any of the four maintenance conditions."""
    has_condition = any(item["type"] in CONDITION_TYPES for item in node["status"]["conditions"])
    return CONDITIONS_LABEL not in node["metadata"]["labels"] and not has_condition


def test_conditions_report_drain_and_are_removed_afterwards(environment: EventChainEnvironment) -> None:
    """Check that the node's conditions follow its maintenance, and are removed when the maintenance is deleted.

    No drain is reported before the node is cordoned and tainted, and the states never go back.
    """
    node = environment.create_node()
    environment.create_pods(node, 3, delete="500ms")
    path = environment.create_maintenance(node)

    states = environment.record_states_until(build_node_path(node), lambda item: get_true_conditions(item) == ORDER[-1])

    reported = list(dict.fromkeys(map(get_true_conditions, states)))
    assert reported == [conditions for conditions in ORDER if conditions in reported]
    assert ORDER[2] in reported
    for state in states:
        assert DRAIN_IN_PROGRESS not in get_true_conditions(state) or is_cordoned_and_tainted(
            state, MEDIK8S.drain_taint
        )
    assert environment.wait_for_state(path)["status"]["pendingCount"] == 0

    environment.client.run(environment.client.api.request("DELETE", path))
    environment.wait_for_deletion(path)
    environment.wait_for_state(build_node_path(node), has_no_conditions)


def test_blocked_drain_stays_in_progress_until_pdb_allows_evictions(environment: EventChainEnvironment) -> None:
    """Check that a drain that a PDB blocks is in progress, and that ticks do not patch the node again."""
    node, labels = environment.create_node(), {"app": "blocked"}
    namespace = environment.create_namespace()
    environment.create_pods(node, 1, namespace=namespace, labels=labels)
    environment.create_budget(namespace, labels, disruptions_allowed=0, minAvailable=1)
    path = environment.create_maintenance(node)
    node_path = build_node_path(node)
    environment.wait_for_state(path, lambda item: bool((item.get("status") or {}).get("blockedPods")))
    blocked = environment.wait_for_state(node_path, lambda item: get_true_conditions(item) == ORDER[2])

    environment.send_tick()

    after_tick = environment.client.get(node_path)
    assert get_maintenance_conditions(after_tick) == get_maintenance_conditions(blocked)
    budget_path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/budget"
    environment.client.patch(budget_path, {"spec": {"minAvailable": 0}})
    environment.wait_for_state(node_path, lambda item: get_true_conditions(item) == ORDER[-1])
    environment.client.run(environment.client.api.request("DELETE", path))
    environment.wait_for_state(node_path, has_no_conditions)
