"""The seed is the plan, and what is planned can be done."""

from __future__ import annotations

from collections import Counter

import pytest

from chaos.plan import AT_MOST, CRASHES, NETWORK, USER, actions, apps

NODES = [f"node-{number}" for number in range(20)]


def test_the_same_seed_plans_the_same() -> None:
    assert actions(7, 300, NODES) == actions(7, 300, NODES)
    assert apps(7, 200) == apps(7, 200)
    assert actions(7, 300, NODES) != actions(8, 300, NODES)


@pytest.mark.parametrize("seed", range(5))
def test_five_minutes_have_all_kinds_of_mischief_in_their_order(seed: int) -> None:
    planned = actions(seed, 300, NODES)

    assert {action.kind for action in planned} == {*USER, *CRASHES, *NETWORK}
    assert [action.at for action in planned] == sorted(action.at for action in planned)
    assert planned[-1].at < 300


@pytest.mark.parametrize("seed", range(5))
def test_a_users_deed_is_done_to_what_is_there(seed: int) -> None:
    there: Counter[str] = Counter()
    for action in actions(seed, 300, NODES):
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
    for action in actions(seed, 300, NODES):
        if action.kind in ("start", "double"):
            maintained[action.subject] = action.node
        maintained.pop(action.subject if action.kind == "stop" else "", None)
        assert len(set(maintained.values())) <= AT_MOST * len(NODES)


@pytest.mark.parametrize("pods", [1, 24, 200])
def test_the_workload_has_the_pods_that_were_asked_for(pods: int) -> None:
    assert sum(app.replicas for app in apps(1, pods)) == pods
