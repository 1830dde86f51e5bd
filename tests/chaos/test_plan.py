"""Tests that a seed determines the fault injection plan, and that each planned action is possible."""

from __future__ import annotations

from collections import Counter

import pytest

from chaos.plan import (
    CRASH_WEIGHTS,
    ESCALATIONS,
    MAX_MAINTAINED_SHARE,
    NETWORK_WEIGHTS,
    RESTART_API_SERVER,
    STEPS,
    UPGRADE_STEPS,
    USER_WEIGHTS,
    Action,
    plan_actions,
    plan_apps,
    plan_upgrade,
    plan_upgrade_actions,
)
from functions.app import FUNCTIONS

NODES = [f"node-{number}" for number in range(20)]
PROCESSES = {kind: (f"{kind} 1", f"{kind} 2") for kind in CRASH_WEIGHTS if kind != RESTART_API_SERVER}


def build_plan(seed: int) -> list[Action]:
    return plan_actions(seed, 300, NODES, PROCESSES)


def test_same_seed_gives_same_plan() -> None:
    assert build_plan(7) == build_plan(7)
    assert plan_apps(7, 200) == plan_apps(7, 200)
    assert build_plan(7) != build_plan(8)


@pytest.mark.parametrize("seed", range(5))
def test_plan_for_five_minutes_contains_all_kinds_of_faults(seed: int) -> None:
    plan = build_plan(seed)

    assert {action.kind for action in plan} == {*USER_WEIGHTS, *CRASH_WEIGHTS, *NETWORK_WEIGHTS}
    assert [action.start_seconds for action in plan] == sorted(action.start_seconds for action in plan)
    assert plan[-1].start_seconds < 300


@pytest.mark.parametrize("seed", range(5))
def test_some_planned_maintenances_have_an_escalation(seed: int) -> None:
    escalations = [action.escalation for action in build_plan(seed) if action.kind in ("start", "double")]

    assert set(escalations) == set(ESCALATIONS)
    assert all(action.duration_seconds for action in build_plan(seed) if action.kind == "unready")


def test_planned_crashes_target_existing_processes() -> None:
    crashes = {
        (action.kind, action.target) for seed in range(3) for action in build_plan(seed) if action.kind in PROCESSES
    }

    assert crashes == {(kind, name) for kind, names in PROCESSES.items() for name in names}


def test_plan_contains_no_crashes_of_missing_processes() -> None:
    kinds = {action.kind for action in plan_actions(1, 300, NODES, {"kill worker": ["evict"]})}

    assert kinds & CRASH_WEIGHTS.keys() == {"kill worker", RESTART_API_SERVER}


@pytest.mark.parametrize("seed", range(5))
def test_planned_user_actions_target_existing_maintenances(seed: int) -> None:
    maintenance_counts: Counter[str] = Counter()
    for action in build_plan(seed):
        if action.kind in ("start", "double"):
            maintenance_counts[action.target] += 1
        if action.kind in ("stop", "replace", "uncordon", "unready"):
            assert maintenance_counts[action.target] == 1
        if action.kind == "stop":
            maintenance_counts[action.target] += 1

    assert max(maintenance_counts.values()) == 2


@pytest.mark.parametrize("seed", range(5))
def test_plan_limits_share_of_nodes_under_maintenance(seed: int) -> None:
    node_by_maintenance: dict[str, str] = {}
    for action in build_plan(seed):
        if action.kind in ("start", "double"):
            node_by_maintenance[action.target] = action.node
        node_by_maintenance.pop(action.target if action.kind == "stop" else "", None)
        assert len(set(node_by_maintenance.values())) <= MAX_MAINTAINED_SHARE * len(NODES)


@pytest.mark.parametrize("pods", [1, 24, 200])
def test_planned_workload_has_requested_number_of_pods(pods: int) -> None:
    assert sum(app.replicas for app in plan_apps(1, pods)) == pods


@pytest.mark.parametrize("seed", range(5))
def test_upgrade_plan_has_only_crashes_and_network_faults(seed: int) -> None:
    """Check that the plan for an upgrade contains only process crashes and network faults.

    The API server keeps running, because the upgrade's observer must not miss any changes.
    """
    plan = plan_upgrade_actions(seed, 300, PROCESSES)

    assert plan == plan_upgrade_actions(seed, 300, PROCESSES)
    assert {action.kind for action in plan} == {*PROCESSES, *NETWORK_WEIGHTS}
    assert {action.target for action in plan if action.kind == "unavailable"} <= set(UPGRADE_STEPS)


def test_network_faults_target_existing_functions() -> None:
    assert {*STEPS, *UPGRADE_STEPS} <= set(FUNCTIONS)


@pytest.mark.parametrize("workers", [2, 4, 20])
def test_planned_upgrade_has_requested_number_of_workers(workers: int) -> None:
    plans = [plan_upgrade(seed, workers) for seed in range(10)]

    assert {sum(plan.pools.values()) for plan in plans} == {workers}
    assert {len(plan.rules) for plan in plans} == {1, 2, 3}
    assert {rule.has_cleanup for plan in plans for rule in plan.rules} == {True, False}
    assert plan_upgrade(7, workers) == plan_upgrade(7, workers)
