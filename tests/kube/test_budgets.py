"""Tests for evaluating PodDisruptionBudgets, on plain dicts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kube.budgets import (
    BUDGETS_PATH,
    LOOSER_BUDGET_PATTERN,
    BlockedPod,
    build_blocked_by_budget,
    count_missing_replicas,
    covers,
    list_paths_of_covering_budgets,
    may_evict_unready_pod,
    never_allows_disruption,
    split_admitted_pods,
)
from kube.paths import Object
from kube.pods import Pod
from tests.kube.samples import make_budget, make_pod

DB_LABELS = {"app": "db"}


def make_db_pod(name: str, *, ready: bool = True, phase: str = "Running") -> Object:
    return make_pod(name, labels=DB_LABELS, ready=ready, phase=phase)


def get_names(pods: Iterable[Pod]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


@pytest.mark.parametrize(
    ("policy", "healthy", "needed", "is_admitted"),
    [
        pytest.param("", 3, 3, True, id="default policy, enough healthy pods"),
        pytest.param("", 2, 3, False, id="default policy, too few healthy pods"),
        pytest.param("", 0, 0, False, id="default policy, no healthy pods and none needed"),
        pytest.param("IfHealthyBudget", 3, 3, True, id="IfHealthyBudget, enough healthy pods"),
        pytest.param("IfHealthyBudget", 2, 3, False, id="IfHealthyBudget, too few healthy pods"),
        pytest.param("AlwaysAllow", 3, 3, True, id="AlwaysAllow, enough healthy pods"),
        pytest.param("AlwaysAllow", 0, 3, True, id="AlwaysAllow, too few healthy pods"),
    ],
)
def test_unready_pods_use_no_allowed_disruption(policy: str, healthy: int, needed: int, is_admitted: bool) -> None:
    """NMO-6, KEP-3017: the `unhealthyPodEvictionPolicy` of a PDB decides whether unready pods may always be evicted."""
    exhausted_budget = make_budget(policy=policy, healthy=healthy, needed=needed)

    admitted, waiting = split_admitted_pods(
        exhausted_budget, [make_db_pod("ready"), make_db_pod("unready", ready=False)]
    )

    assert (get_names(admitted), get_names(waiting)) == (
        (["unready"], ["ready"]) if is_admitted else ([], ["ready", "unready"])
    )


@pytest.mark.parametrize(
    ("limit", "healthy", "count"),
    [
        pytest.param({"minAvailable": 3}, 3, 1, id="number"),
        pytest.param({"minAvailable": 3}, 2, 2, id="number, one pod unready"),
        pytest.param({"minAvailable": "80%"}, 3, 2, id="percentage, rounded up"),
        pytest.param({"minAvailable": "99%"}, 3, 0, id="percentage, too many replicas"),
        pytest.param({"minAvailable": "100%"}, 3, 0, id="all pods"),
        pytest.param({"maxUnavailable": 0}, 3, 0, id="no unavailable pod"),
        pytest.param({"maxUnavailable": 1}, 2, 0, id="unready pod uses up the limit"),
        pytest.param({"maxUnavailable": "30%"}, 2, 1, id="percentage of unavailable pods"),
    ],
)
def test_missing_replicas_are_counted_by_rules_of_api_server(limit: Object, healthy: int, count: int) -> None:
    """Check the number of replicas that let a PDB of three expected pods allow an eviction, 0 if none do."""
    budget = make_budget(healthy=healthy)
    budget["spec"] |= limit
    budget["status"]["expectedPods"] = 3

    assert count_missing_replicas(budget) == count


def test_pdb_without_status_allows_no_eviction() -> None:
    """NMO-6: a PDB that has just been created has no status and allows no eviction."""
    new_budget = make_budget()
    del new_budget["status"]

    assert split_admitted_pods(new_budget, [make_db_pod("a")]) == ([], [make_db_pod("a")])
    assert build_blocked_by_budget(new_budget, make_db_pod("a")).healthy is None


def test_empty_selector_of_pdb_selects_whole_namespace() -> None:
    """NMO-6: a PDB with an empty selector selects every pod of its namespace, and one without a selector no pod."""
    with_empty_selector, without_selector = make_budget(selector={}), make_budget()
    del without_selector["spec"]["selector"]

    assert covers(with_empty_selector, make_pod("a"))
    assert not covers(with_empty_selector, make_pod("a", namespace="other"))
    assert not covers(without_selector, make_db_pod("a"))


def test_event_data_omits_unknown_counts_of_pdb() -> None:
    """OSV-13: event data contains a PDB's counts only if they are known."""
    identity = {"namespace": "ns", "name": "a", "uid": "u"}

    counts = {"healthy": 0, "needed": 1}
    event_data = BlockedPod(identity, "DisruptionBudget", "m", "keep", 0, 1).as_data()
    event_data_without_counts = BlockedPod(identity, "Error", "m").as_data()

    assert event_data == {**identity, "reason": "DisruptionBudget", "message": "m", "budget": "keep", **counts}
    assert event_data_without_counts == {**identity, "reason": "Error", "message": "m", "budget": ""}


@pytest.mark.parametrize(
    ("namespaces", "paths"),
    [
        ("", []),
        (
            "aab",
            ["/apis/policy/v1/namespaces/a/poddisruptionbudgets", "/apis/policy/v1/namespaces/b/poddisruptionbudgets"],
        ),
        ("abcd", [BUDGETS_PATH]),
    ],
    ids=["no pods", "two namespaces", "many"],
)
def test_pdb_list_paths_depend_on_number_of_namespaces(namespaces: str, paths: list[str]) -> None:
    """Check that PDBs in up to three namespaces are listed by namespace, and PDBs in more namespaces in one list."""
    assert list_paths_of_covering_budgets([make_pod(namespace=namespace) for namespace in namespaces]) == paths


BUDGET_WITHOUT_STATUS: Object = {"metadata": {"name": "b", "namespace": "ns"}, "spec": {"selector": {}}}
UNCOUNTED_BUDGET = {**BUDGET_WITHOUT_STATUS, "metadata": {**BUDGET_WITHOUT_STATUS["metadata"], "generation": 1}}


@pytest.mark.parametrize(
    ("blocking_budget", "message", "counts"),
    [
        (UNCOUNTED_BUDGET, "the status of budget b is not up to date yet", {}),
        (BUDGET_WITHOUT_STATUS, "budget b needs 0 healthy pods and has 0", {"healthy": 0, "needed": 0}),
        (make_budget("b", healthy=3, needed=2), "budget b needs 2 healthy pods and has 2", {"healthy": 2, "needed": 2}),
        (make_budget("b", healthy=0, needed=2), "budget b needs 2 healthy pods and has 0", {"healthy": 0, "needed": 2}),
    ],
    ids=["not counted", "without a status", "one evicted", "no healthy pod"],
)
def test_blocked_pod_has_name_and_counts_of_pdb(blocking_budget: Object, message: str, counts: Object) -> None:
    """NMO-13: a blocked pod has its PDB's name, and the PDB's counts after one planned eviction if they are known."""
    blocked = build_blocked_by_budget(blocking_budget, make_pod("a"), 1).as_data()

    reason = {"reason": "DisruptionBudget", "message": message, "budget": "b"}
    assert blocked == {"namespace": "ns", "name": "a", "uid": "ns-a-uid", **reason, **counts}


@pytest.mark.parametrize(
    ("limit", "expected_pods", "healthy", "looser_budget"),
    [
        ({"minAvailable": 3}, 3, 3, "minAvailable=2"),
        ({"minAvailable": "100%"}, 3, 3, "minAvailable=2"),
        ({"minAvailable": 1}, 1, 0, "minAvailable=0"),
        ({"maxUnavailable": 0}, 3, 3, "maxUnavailable=1"),
        ({"maxUnavailable": "10%"}, 3, 2, "maxUnavailable=2"),
        ({"maxUnavailable": 1}, 0, 2, ""),
    ],
)
def test_changed_pdb_allows_one_disruption(limit: Object, expected_pods: int, healthy: int, looser_budget: str) -> None:
    """Check the computed change to a PDB that allows one disruption, which requires the number of expected pods."""
    budget = make_budget("b", healthy=healthy, needed=healthy)
    budget["spec"] |= limit
    budget["status"]["expectedPods"] = expected_pods

    blocked, unready = (build_blocked_by_budget(budget, make_db_pod("a", ready=ready)) for ready in (True, False))

    assert blocked.looser_budget == blocked.as_data().get("looserBudget", "") == looser_budget
    assert unready.looser_budget == "unhealthyPodEvictionPolicy=AlwaysAllow"
    assert LOOSER_BUDGET_PATTERN.fullmatch(unready.looser_budget)
    assert not looser_budget or LOOSER_BUDGET_PATTERN.fullmatch(looser_budget)


def test_pdb_without_counts_allows_no_eviction() -> None:
    """X-6: a PDB without counts in its status allows evictions of neither ready nor unready pods."""
    for budget in (
        UNCOUNTED_BUDGET,
        BUDGET_WITHOUT_STATUS,
        {**BUDGET_WITHOUT_STATUS, "status": {"observedGeneration": 0}},
    ):
        for pod in (make_pod("a"), make_pod("b", ready=False)):
            assert split_admitted_pods(budget, [pod]) == ([], [pod])
            assert not may_evict_unready_pod(budget, pod)
        assert not never_allows_disruption(budget)


@pytest.mark.parametrize(
    ("needed", "healthy", "is_admitted"), [(0, 1, False), (1, 1, True), (2, 1, False), (1, 0, False)]
)
def test_eviction_of_unready_pod_requires_enough_healthy_pods(needed: int, healthy: int, is_admitted: bool) -> None:
    """X-6, KEP-3017: a PDB admits unready pods if it has enough healthy pods, and requires at least one."""
    assert (
        may_evict_unready_pod(make_budget("b", healthy=healthy, needed=needed), make_pod("a", ready=False))
        is is_admitted
    )
