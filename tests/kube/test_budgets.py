"""Tests for planning evictions that disruption budgets allow, on plain dicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given

from kube.budgets import (
    BUDGETS_PATH,
    MIGRATION_UID_LABEL,
    BlockedPod,
    build_blocked_by_budget,
    build_budget_paths,
    covers,
    format_budget_key,
    may_evict_as_unready,
    never_allows_disruption,
    plan_evictions,
    split_admitted_pods,
)
from kube.paths import Object
from kube.pods import DrainOptions, Pod, classify_pods, format_key, is_ready, is_terminating
from tests.kube import samples
from tests.kube.samples import make_budget, make_pod

DB_LABELS = {"app": "db"}
PAST_TIME = "2026-01-01T00:00:00Z"


def make_db_pod(name: str, *, ready: bool = True, phase: str = "Running") -> Object:
    return make_pod(name, labels=DB_LABELS, ready=ready, phase=phase)


def get_names(pods: Iterable[Pod]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def test_pod_that_no_budget_covers_may_be_evicted() -> None:
    """NMO-6: a pod may be evicted if all budgets belong to another namespace or select other pods."""
    other_budgets = [make_budget(namespace="other"), make_budget("web", selector={"matchLabels": {"app": "web"}})]

    plan = plan_evictions([make_db_pod("a")], other_budgets)

    assert (get_names(plan.unbudgeted), plan.queues_by_budget, plan.blocked) == (["a"], {}, [])


def test_deletion_ignores_budgets() -> None:
    """DRN-1a: with `disableEviction`, no budget blocks a pod."""
    plan = plan_evictions([make_db_pod("a")], [make_budget(allowed=0)], DrainOptions(disable_eviction=True))

    assert (get_names(plan.unbudgeted), plan.queues_by_budget, plan.blocked) == (["a"], {}, [])


def test_budget_admits_as_many_pods_as_it_allows() -> None:
    """NMO-6, X-6: if a budget allows two of four evictions, two pods are queued, and two are blocked by it."""
    plan = plan_evictions([make_db_pod(name) for name in "abcd"], [make_budget("keep", allowed=2, healthy=4, needed=2)])

    assert {name: get_names(queue) for name, queue in plan.queues_by_budget.items()} == {"ns/keep": ["a", "b"]}
    assert [blocked.pod["name"] for blocked in plan.blocked] == ["c", "d"]
    assert [(blocked.reason, blocked.budget, blocked.healthy, blocked.needed) for blocked in plan.blocked] == [
        ("DisruptionBudget", "keep", 2, 2)
    ] * 2
    assert plan.unbudgeted == []


@pytest.mark.parametrize(
    ("spec", "expected", "allows_none"),
    [
        ({"maxUnavailable": 0}, 3, True),
        ({"maxUnavailable": "0%"}, 3, True),
        ({"minAvailable": "100%"}, 3, True),
        ({"maxUnavailable": 1}, 4, False),
        ({"minAvailable": "50%"}, 6, False),
        ({"minAvailable": "80%"}, 3, False),
        ({"minAvailable": 3}, 3, False),
        ({"minAvailable": 5}, 3, False),
        ({"maxUnavailable": 0}, 0, False),
    ],
    ids=str,
)
def test_budget_that_never_allows_a_disruption_is_reported(
    spec: dict[str, Any], expected: int, allows_none: bool
) -> None:
    """OSV-13: `allowsNone` is reported only for a budget that requires all of its pods to be healthy."""
    budget = make_budget("keep", needed=3)
    budget["spec"] |= spec
    budget["status"] |= {"expectedPods": expected}

    (blocked,) = plan_evictions([make_db_pod("a")], [budget]).blocked

    assert blocked.as_data().get("allowsNone", False) is allows_none


def test_pod_under_two_budgets_is_blocked() -> None:
    """NMO-6: a pod under two budgets is blocked, and the message names both budgets and the remedy."""
    plan = plan_evictions([make_db_pod("a")], [make_budget("one", allowed=1), make_budget("two", allowed=1)])

    (blocked,) = plan.blocked
    assert (blocked.reason, blocked.budget) == ("MultipleBudgets", "one, two")
    assert "delete or narrow one of them" in blocked.message
    assert (plan.unbudgeted, plan.queues_by_budget) == ([], {})


def test_terminating_pods_are_neither_evicted_nor_blocked() -> None:
    """NMO-6: a terminating pod is neither evicted again nor reported as blocked."""
    plan = plan_evictions(
        [make_pod("a", deletionTimestamp=PAST_TIME), make_pod("b", labels=DB_LABELS, deletionTimestamp=PAST_TIME)],
        [make_budget()],
    )

    assert (plan.unbudgeted, plan.queues_by_budget, plan.blocked) == ([], {}, [])


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_pod_that_is_not_running_is_evicted_without_budget_check(phase: str) -> None:
    """NMO-6, NMO-9: the eviction subresource checks no budget for pods that are not running."""
    plan = plan_evictions([make_db_pod("a", ready=False, phase=phase)], [make_budget()])

    assert get_names(plan.unbudgeted) == ["a"]


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
    """NMO-6: the `unhealthyPodEvictionPolicy` decides whether an exhausted budget admits unready pods (KEP-3017)."""
    exhausted_budget = make_budget(policy=policy, healthy=healthy, needed=needed)

    admitted, waiting = split_admitted_pods(
        exhausted_budget, [make_db_pod("ready"), make_db_pod("unready", ready=False)]
    )

    assert (get_names(admitted), get_names(waiting)) == (
        (["unready"], ["ready"]) if is_admitted else ([], ["ready", "unready"])
    )


def test_budget_with_an_outdated_status_admits_no_pod() -> None:
    """NMO-6: a budget with an outdated status admits no pod; the server would respond with 429 and Retry-After."""
    plan = plan_evictions([make_db_pod("a")], [make_budget("new", allowed=3, observed=0)])

    (blocked,) = plan.blocked
    assert (blocked.message, blocked.healthy) == ("the status of budget new is not up to date yet", None)
    assert plan.queues_by_budget == {}


def test_budget_without_a_status_admits_no_pod() -> None:
    """NMO-6: a budget that was created just now has no status and admits no pod."""
    new_budget = make_budget()
    del new_budget["status"]

    assert split_admitted_pods(new_budget, [make_db_pod("a")]) == ([], [make_db_pod("a")])
    assert build_blocked_by_budget(new_budget, make_db_pod("a")).healthy is None


def test_an_empty_selector_covers_the_namespace() -> None:
    """NMO-6: in policy/v1, an empty selector covers every pod of the namespace, and a missing one covers none."""
    with_empty_selector, without_selector = make_budget(selector={}), make_budget()
    del without_selector["spec"]["selector"]

    assert covers(with_empty_selector, make_pod("a"))
    assert not covers(with_empty_selector, make_pod("a", namespace="other"))
    assert not covers(without_selector, make_db_pod("a"))


@pytest.mark.parametrize(
    ("needed", "healthy"), [(2, 1), (1, 1), (0, 0)], ids=["our budget", "KubeVirt's budget", "not yet counted"]
)
@pytest.mark.parametrize("policy", ["", "AlwaysAllow"])
def test_pending_migration_target_is_blocked(needed: int, healthy: int, policy: str) -> None:
    """DRN-9: a migration's target pod is blocked while it is pending, and treated like any other pod once it runs.

    The API server would check no budget for the pending pod.
    """
    budget = make_budget("launcher", needed=needed, healthy=healthy, policy=policy)
    target_pod = make_pod("target", labels={**DB_LABELS, MIGRATION_UID_LABEL: "uid"}, ready=False, phase="Pending")
    plan = plan_evictions([target_pod], [budget])

    assert (plan.unbudgeted, plan.queues_by_budget) == ([], {})
    assert [(blocked.reason, blocked.budget) for blocked in plan.blocked] == [("Migrating", "launcher")]
    assert plan_evictions([target_pod], []).unbudgeted == [target_pod]
    assert plan_evictions([make_db_pod("other", ready=False, phase="Pending")], [budget]).blocked == []
    assert (
        plan_evictions([make_pod("target", labels={**DB_LABELS, MIGRATION_UID_LABEL: "uid"})], [budget])
        .blocked[0]
        .reason
        == "DisruptionBudget"
    )


def test_event_data_omits_unknown_counts() -> None:
    """OSV-13: event data contains counts only if they are known."""
    identity = {"namespace": "ns", "name": "a", "uid": "u"}

    counts = {"healthy": 0, "needed": 1}
    event_data = BlockedPod(identity, "DisruptionBudget", "m", "keep", 0, 1).as_data()
    event_data_without_counts = BlockedPod(identity, "Error", "m").as_data()

    assert event_data == {**identity, "reason": "DisruptionBudget", "message": "m", "budget": "keep", **counts}
    assert event_data_without_counts == {**identity, "reason": "Error", "message": "m", "budget": ""}


@given(samples.pod_lists, samples.budget_lists)
def test_every_pod_that_must_leave_is_planned_once(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6: each pod that must leave and is not terminating is either `unbudgeted`, queued or blocked."""
    leaving = classify_pods(pods).leaving

    plan = plan_evictions(leaving, budgets)

    queued_pods = [pod for queue in plan.queues_by_budget.values() for pod in queue]
    blocked_keys = [f"{blocked.pod['namespace']}/{blocked.pod['name']}" for blocked in plan.blocked]
    planned_keys = [*map(format_key, plan.unbudgeted), *map(format_key, queued_pods), *blocked_keys]
    assert sorted(planned_keys) == sorted(format_key(pod) for pod in leaving if not is_terminating(pod))


@given(samples.pod_lists, samples.budget_lists)
def test_queue_never_exceeds_the_allowed_disruptions(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6, X-6: a queue has at most `disruptionsAllowed` ready pods, and none if the budget's status is outdated."""
    plan = plan_evictions(classify_pods(pods).leaving, budgets)

    for budget in budgets:
        queue = plan.queues_by_budget.get(format_budget_key(budget), [])
        assert sum(is_ready(pod) for pod in queue) <= max(0, budget["status"]["disruptionsAllowed"])
        if budget["status"]["observedGeneration"] < 1:
            assert list(queue) == []
        assert all(covers(budget, pod) for pod in queue)


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
def test_budget_paths_depend_on_the_number_of_namespaces(namespaces: str, paths: list[str]) -> None:
    """Check that budgets in up to three namespaces are listed per namespace, and otherwise all budgets in one list."""
    assert build_budget_paths([make_pod(namespace=namespace) for namespace in namespaces]) == paths


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
def test_blocked_pod_names_its_budget_and_counts(blocking_budget: Object, message: str, counts: Object) -> None:
    """NMO-13: a blocked pod has its budget's name, and the counts after one planned eviction, if they are known."""
    blocked = build_blocked_by_budget(blocking_budget, make_pod("a"), 1).as_data()

    reason = {"reason": "DisruptionBudget", "message": message, "budget": "b"}
    assert blocked == {"namespace": "ns", "name": "a", "uid": "ns-a-uid", **reason, **counts}


def test_budget_without_counts_admits_no_pod() -> None:
    """X-6: a budget without counts admits neither ready nor unready pods."""
    for budget in (
        UNCOUNTED_BUDGET,
        BUDGET_WITHOUT_STATUS,
        {**BUDGET_WITHOUT_STATUS, "status": {"observedGeneration": 0}},
    ):
        for pod in (make_pod("a"), make_pod("b", ready=False)):
            assert split_admitted_pods(budget, [pod]) == ([], [pod])
            assert not may_evict_as_unready(budget, pod)
        assert not never_allows_disruption(budget)


@pytest.mark.parametrize(
    ("needed", "healthy", "is_admitted"), [(0, 1, False), (1, 1, True), (2, 1, False), (1, 0, False)]
)
def test_unready_pod_needs_enough_healthy_pods(needed: int, healthy: int, is_admitted: bool) -> None:
    """X-6, KEP-3017: a budget admits unready pods if it has enough healthy ones, and requires at least one."""
    assert (
        may_evict_as_unready(make_budget("b", healthy=healthy, needed=needed), make_pod("a", ready=False))
        is is_admitted
    )
