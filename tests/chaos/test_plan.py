"""The seed determines the plan, and each planned action is possible."""

from __future__ import annotations

from collections import Counter

import pytest

from chaos.plan import (
    AT_MOST,
    CRASHES,
    NETWORK,
    RESTART,
    STEPS,
    UPGRADE_STEPS,
    USER,
    Action,
    actions,
    apps,
    upgrade,
    upgrade_actions,
)
from functions.app import FUNCTIONS

NODES = [f"node-{number}" for number in range(20)]
PROCESSES = {kind: (f"{kind} 1", f"{kind} 2") for kind in CRASHES if kind != RESTART}


def planned(seed: int) -> list[Action]:
    return actions(seed, 300, NODES, PROCESSES)


def test_the_same_seed_plans_the_same() -> None:
    assert planned(7) == planned(7)
    assert apps(7, 200) == apps(7, 200)
    assert planned(7) != planned(8)


@pytest.mark.parametrize("seed", range(5))
def test_five_minutes_have_all_kinds_of_mischief_in_their_order(seed: int) -> None:
    found = planned(seed)

    assert {action.kind for action in found} == {*USER, *CRASHES, *NETWORK}
    assert [action.at for action in found] == sorted(action.at for action in found)
    assert found[-1].at < 300


def test_a_crash_is_that_of_a_process_that_is_there() -> None:
    crashes = {(action.kind, action.subject) for action in planned(1) if action.kind in PROCESSES}

    assert crashes == {(kind, name) for kind, names in PROCESSES.items() for name in names}


def test_what_an_engine_has_not_is_not_planned() -> None:
    found = {action.kind for action in actions(1, 300, NODES, {"kill worker": ["evict"]})}

    assert found & CRASHES.keys() == {"kill worker", RESTART}


@pytest.mark.parametrize("seed", range(5))
def test_a_users_deed_is_done_to_what_is_there(seed: int) -> None:
    there: Counter[str] = Counter()
    for action in planned(seed):
        if action.kind in ("start", "double"):
            there[action.subject] += 1
        if action.kind in ("stop", "replace", "uncordon"):
            assert there[action.subject] == 1
        if action.kind == "stop":
            there[action.subject] += 1

    assert max(there.values()) == 2


@pytest.mark.parametrize("seed", range(5))
def test_pods_find_room_elsewhere(seed: int) -> None:
    maintained: dict[str, str] = {}
    for action in planned(seed):
        if action.kind in ("start", "double"):
            maintained[action.subject] = action.node
        maintained.pop(action.subject if action.kind == "stop" else "", None)
        assert len(set(maintained.values())) <= AT_MOST * len(NODES)


@pytest.mark.parametrize("pods", [1, 24, 200])
def test_the_workload_has_the_pods_that_were_asked_for(pods: int) -> None:
    assert sum(app.replicas for app in apps(1, pods)) == pods


@pytest.mark.parametrize("seed", range(5))
def test_amid_an_upgrade_processes_and_network_misbehave_and_nobody_else(seed: int) -> None:
    """Check that an upgrade plan contains only process crashes and network faults.

    The API server keeps running, because the observer of the upgrade must not miss anything.
    """
    found = upgrade_actions(seed, 300, PROCESSES)

    assert found == upgrade_actions(seed, 300, PROCESSES)
    assert {action.kind for action in found} == {*PROCESSES, *NETWORK}
    assert {action.subject for action in found if action.kind == "unavailable"} <= set(UPGRADE_STEPS)


def test_a_step_that_is_unavailable_is_one_that_is_there() -> None:
    assert {*STEPS, *UPGRADE_STEPS} <= set(FUNCTIONS)


@pytest.mark.parametrize("workers", [2, 4, 20])
def test_an_upgrade_is_of_the_workers_that_were_asked_for(workers: int) -> None:
    found = [upgrade(seed, workers) for seed in range(10)]

    assert {sum(each.pools.values()) for each in found} == {workers}
    assert {len(each.rules) for each in found} == {1, 2, 3}
    assert {rule.has_cleanup for each in found for rule in each.rules} == {True, False}
    assert upgrade(7, workers) == upgrade(7, workers)
