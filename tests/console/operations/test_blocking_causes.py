"""Tests for grouping blocked pods by cause."""

from __future__ import annotations

from typing import Any

from console.operations.blocking_causes import group_by_cause
from kube.paths import Object

MULTIPLE_BUDGETS = "MultipleBudgets"


def make_blocked(name: str, reason: str = "DisruptionBudget", namespace: str = "ns", **fields: Any) -> Object:
    return {"namespace": namespace, "name": name, "reason": reason, "message": "m", "budget": "", **fields}


def test_pods_under_one_budget_are_one_cause_with_count() -> None:
    blocked = [make_blocked(f"web-{index}", budget="web", healthy=15, needed=15) for index in range(15)]

    (cause,) = group_by_cause(blocked)

    assert (cause.subject, len(cause.pods), cause.as_data()["count"]) == ("ns/web", 15, 15)
    assert cause.as_data()["remedies"] == [
        "1 more ready pod under this budget: kubectl -n ns scale deployment/NAME --replicas=NUMBER",
        "or a looser budget: kubectl -n ns edit pdb web",
    ]
    assert cause.as_data()["pods"][0] == {"namespace": "ns", "name": "web-0"}


def test_causes_differ_by_budget_namespace_reason_and_message() -> None:
    blocked = [
        make_blocked("a", budget="web"),
        make_blocked("b", budget="db"),
        make_blocked("c", budget="web", namespace="other"),
        make_blocked("d", MULTIPLE_BUDGETS, budget="db, web"),
        make_blocked("e", "Finalizers", message="finalizers x"),
        make_blocked("f", "Finalizers", message="finalizers y"),
    ]

    assert [len(cause.pods) for cause in group_by_cause(blocked)] == [1] * 6


def test_subject_names_each_budget_with_namespace() -> None:
    (cause,) = group_by_cause([make_blocked("a", MULTIPLE_BUDGETS, budget="db, web")])

    assert cause.subject == "ns/db, ns/web"


def test_drain_option_is_one_cause_in_all_namespaces() -> None:
    blocked = [make_blocked("a", "Force"), make_blocked("b", "Force", namespace="other")]

    (cause,) = group_by_cause(blocked)

    assert (cause.reason, cause.namespace, cause.subject, len(cause.pods)) == ("Force", "", "Force", 2)


def test_cause_with_most_pods_comes_first() -> None:
    blocked = [make_blocked("a", "Force"), *(make_blocked(name, budget="web") for name in "bc")]

    assert [cause.subject for cause in group_by_cause(blocked)] == ["ns/web", "Force"]


def test_no_blocked_pods_have_no_cause() -> None:
    assert group_by_cause([]) == []
