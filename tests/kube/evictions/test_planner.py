"""Tests for planning the evictions that PDBs allow, and the evacuation requests, on plain dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given

from kube.budgets import (
    CREATED_BY_LABEL,
    MIGRATION_UID_LABEL,
    WAIT_ANNOTATION_PREFIX,
    WAITS_FOR_KUBEVIRT,
    BlockedPod,
    covers,
    format_budget_key,
)
from kube.evictions.planner import EvictionPlan, plan_evictions
from kube.paths import Object
from kube.pods import DrainOptions, Pod, classify_pods, format_key, is_ready, is_terminating
from tests.kube import samples
from tests.kube.samples import make_budget, make_pod
from tests.proofs import proves

DB_LABELS = {"app": "db"}
PAST_TIME = "2026-01-01T00:00:00Z"
VIRT_LAUNCHER_POD = make_pod("launcher", labels={CREATED_BY_LABEL: "u"})
OTHER_POD = make_pod("other", labels={"app": "web"})


def make_pod_covered_by_pdb(name: str, *, ready: bool = True, phase: str = "Running") -> Object:
    return make_pod(name, labels=DB_LABELS, ready=ready, phase=phase)


def get_names(pods: Iterable[Pod]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def test_pod_that_no_pdb_selects_may_be_evicted() -> None:
    """NMO-6: a pod may be evicted if every PDB is in another namespace or selects other pods."""
    other_budgets = [make_budget(namespace="other"), make_budget("web", selector={"matchLabels": {"app": "web"}})]

    plan = plan_evictions([make_pod_covered_by_pdb("a")], other_budgets)

    assert (get_names(plan.unbudgeted), plan.queues, plan.blocked) == (["a"], [], [])


def test_plan_of_deletions_ignores_pdbs() -> None:
    """DRN-1a: with `disableEviction`, no PDB blocks a pod."""
    plan = plan_evictions([make_pod_covered_by_pdb("a")], [make_budget(allowed=0)], DrainOptions(disable_eviction=True))

    assert (get_names(plan.unbudgeted), plan.queues, plan.blocked) == (["a"], [], [])


def test_pod_to_delete_is_neither_evicted_nor_blocked() -> None:
    """Check that a pod that the plan deletes is neither evicted nor blocked; the plan for other pods is unchanged."""
    pods = [make_pod_covered_by_pdb(name) for name in "abc"]
    plan = plan_evictions([*pods, OTHER_POD], [make_budget("keep", allowed=1)])
    deleted = [pods[1], OTHER_POD]
    options = DrainOptions(disable_eviction=True, escalation_action="Delete")

    escalated = plan.with_deletions(deleted, options)

    assert (escalated.deletions, escalated.deletion_options, escalated.unbudgeted) == (deleted, options, [])
    assert escalated.queues == plan.queues
    assert [item.pod["name"] for item in escalated.blocked] == ["c"]
    assert get_names(escalated.admitted) == [*get_names(plan.queues[0].admitted), *get_names(deleted)]
    assert get_names(escalated.select(lambda pod: pod is OTHER_POD).admitted) == ["other"]


def test_pods_beyond_disruptions_that_pdb_allows_are_blocked() -> None:
    """NMO-6, X-6: if a PDB allows two of four evictions, two pods are queued, and the other two are blocked."""
    plan = plan_evictions(
        [make_pod_covered_by_pdb(name) for name in "abcd"], [make_budget("keep", allowed=2, healthy=4, needed=2)]
    )

    (queue,) = plan.queues
    assert (queue.key, get_names(queue.admitted)) == ("ns/keep", ["a", "b"])
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
def test_pdb_that_never_allows_disruption_is_reported(spec: dict[str, Any], expected: int, allows_none: bool) -> None:
    """OSV-13: `allowsNone` is reported only for a PDB that requires all its pods to be healthy."""
    budget = make_budget("keep", needed=3)
    budget["spec"] |= spec
    budget["status"] |= {"expectedPods": expected}

    (blocked,) = plan_evictions([make_pod_covered_by_pdb("a")], [budget]).blocked

    assert blocked.as_data().get("allowsNone", False) is allows_none


def test_pod_that_two_pdbs_select_is_blocked() -> None:
    """NMO-6: a pod that two PDBs select is blocked, and the message names both PDBs and states the remedy."""
    plan = plan_evictions(
        [make_pod_covered_by_pdb("a")], [make_budget("one", allowed=1), make_budget("two", allowed=1)]
    )

    (blocked,) = plan.blocked
    assert (blocked.reason, blocked.budget) == ("MultipleBudgets", "one, two")
    assert "delete or narrow one of them" in blocked.message
    assert plan.admitted == []


def test_terminating_pods_are_neither_evicted_nor_blocked() -> None:
    """NMO-6: a terminating pod is neither evicted again nor reported as blocked."""
    plan = plan_evictions(
        [make_pod("a", deletionTimestamp=PAST_TIME), make_pod("b", labels=DB_LABELS, deletionTimestamp=PAST_TIME)],
        [make_budget()],
    )

    assert (plan.admitted, plan.blocked) == ([], [])


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_pod_that_is_not_running_is_evicted_without_pdb_check(phase: str) -> None:
    """NMO-6, NMO-9: a pod that is not running is evicted, because the eviction API checks no PDB for it."""
    plan = plan_evictions([make_pod_covered_by_pdb("a", ready=False, phase=phase)], [make_budget()])

    assert get_names(plan.unbudgeted) == ["a"]


def test_pdb_with_outdated_status_blocks_all_pods() -> None:
    """NMO-6: no pod is queued for a PDB with an outdated status; the API server would respond with 429."""
    plan = plan_evictions([make_pod_covered_by_pdb("a")], [make_budget("new", allowed=3, observed=0)])

    (blocked,) = plan.blocked
    assert (blocked.message, blocked.healthy) == ("the status of budget new is not up to date yet", None)
    assert plan.admitted == []


@pytest.mark.parametrize(
    ("needed", "healthy"), [(2, 1), (1, 1), (0, 0)], ids=["our budget", "KubeVirt's budget", "not yet counted"]
)
@pytest.mark.parametrize("policy", ["", "AlwaysAllow"])
def test_pending_migration_target_is_blocked(needed: int, healthy: int, policy: str) -> None:
    """DRN-9: a migration's target pod is blocked while it is pending, and treated like any other pod once it runs.

    The API server would check no PDB for the pending pod.
    """
    budget = make_budget("launcher", needed=needed, healthy=healthy, policy=policy)
    target_pod = make_pod("target", labels={**DB_LABELS, MIGRATION_UID_LABEL: "uid"}, ready=False, phase="Pending")
    plan = plan_evictions([target_pod], [budget])

    assert plan.admitted == []
    assert [(blocked.reason, blocked.budget) for blocked in plan.blocked] == [("Migrating", "launcher")]
    assert plan_evictions([target_pod], []).unbudgeted == [target_pod]
    assert plan_evictions([make_pod_covered_by_pdb("other", ready=False, phase="Pending")], [budget]).blocked == []
    assert (
        plan_evictions([make_pod("target", labels={**DB_LABELS, MIGRATION_UID_LABEL: "uid"})], [budget])
        .blocked[0]
        .reason
        == "DisruptionBudget"
    )


@given(samples.pod_lists, samples.budget_lists)
def test_every_pod_to_evict_is_planned_once(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6: each pod to evict that is not terminating is either `unbudgeted`, queued or blocked."""
    leaving = classify_pods(pods).leaving

    plan = plan_evictions(leaving, budgets)

    blocked_keys = [f"{blocked.pod['namespace']}/{blocked.pod['name']}" for blocked in plan.blocked]
    assert sorted([*map(format_key, plan.admitted), *blocked_keys]) == sorted(
        format_key(pod) for pod in leaving if not is_terminating(pod)
    )


@given(samples.pod_lists, samples.budget_lists)
def test_eviction_queue_never_exceeds_allowed_disruptions(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6, X-6: a PDB's queue has at most `disruptionsAllowed` ready pods, and none if its status is outdated."""
    queues = {queue.key: queue.admitted for queue in plan_evictions(classify_pods(pods).leaving, budgets).queues}

    for budget in budgets:
        queue = queues.get(format_budget_key(budget), [])
        assert sum(is_ready(pod) for pod in queue) <= max(0, budget["status"]["disruptionsAllowed"])
        if budget["status"]["observedGeneration"] < 1:
            assert list(queue) == []
        assert all(covers(budget, pod) for pod in queue)


def plan_evictions_of_both_pods(reason: str, is_evacuation_due: Callable[[BlockedPod], bool]) -> EvictionPlan:
    """Return the plan for the two sample pods, with this reason in the PDB of the virt-launcher pod."""
    annotations: Object = {
        f"{WAIT_ANNOTATION_PREFIX}reason": reason,
        f"{WAIT_ANNOTATION_PREFIX}message": "reported message",
    }
    budget = make_budget("theirs", healthy=1, needed=1, selector={"matchLabels": {CREATED_BY_LABEL: "u"}})
    budget["metadata"].update(annotations=annotations, ownerReferences=[{"kind": "VirtualMachineInstance", "uid": "u"}])
    return plan_evictions([VIRT_LAUNCHER_POD, OTHER_POD], [budget], is_evacuation_due=is_evacuation_due)


@proves("DRN-10")
def test_evacuation_is_requested_for_pod_that_waits_for_kubevirt() -> None:
    """Check that a pod that waits for KubeVirt is queued, and that its PDB's reason replaces the 429 response."""
    plan = plan_evictions_of_both_pods(WAITS_FOR_KUBEVIRT, lambda _blocked_pod: True)

    (queue,), (expected,) = plan.queues, plan.expected_refusals.values()
    assert (plan.unbudgeted, queue.key, queue.admitted) == ([OTHER_POD], "ns/theirs", [VIRT_LAUNCHER_POD])
    assert (expected.pod["name"], expected.reason) == ("launcher", WAITS_FOR_KUBEVIRT)
    assert expected.message == "reported message"
    assert plan.blocked == []


@proves("DRN-10")
def test_evacuation_is_not_requested_for_migrating_or_recently_requested_pod() -> None:
    """Check that a pod is not queued if its VMI is already migrating, or if its next evacuation request is not due."""
    cases: list[tuple[str, Callable[[BlockedPod], bool]]]
    cases = [("Migrating", lambda _blocked_pod: True), (WAITS_FOR_KUBEVIRT, lambda _blocked_pod: False)]
    for reason, is_due in cases:
        plan = plan_evictions_of_both_pods(reason, is_due)
        assert (plan.queues, plan.expected_refusals) == ([], {})
        assert [blocked_pod.reason for blocked_pod in plan.blocked] == [reason]
