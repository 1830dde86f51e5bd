"""Tests for the grouping of blocked pods by cause, and for what would unblock them."""

from __future__ import annotations

from typing import Any

import pytest

from console.operations.blocked_pods import group_blocked_pods

BLOCKED_POD = {
    "namespace": "shop",
    "name": "web-1",
    "reason": "DisruptionBudget",
    "budget": "web",
    "healthy": 2,
    "needed": 2,
}
HOW_TO_GET_MORE = "(repair unready pods, or scale up the workload)"


@pytest.mark.parametrize(
    ("blocked_pod", "expected_remedies"),
    [
        (
            BLOCKED_POD,
            [
                f"1 more ready pod under this budget {HOW_TO_GET_MORE}",
                "or a looser budget: kubectl -n shop edit pdb web",
            ],
        ),
        (
            {**BLOCKED_POD, "allowsNone": True},
            [
                "a looser budget (this one allows no eviction, however many pods are ready): "
                "kubectl -n shop edit pdb web"
            ],
        ),
        (
            {**BLOCKED_POD, "healthy": 1, "needed": 3},
            [
                f"3 more ready pods under this budget {HOW_TO_GET_MORE}",
                "or a looser budget: kubectl -n shop edit pdb web",
            ],
        ),
        (
            {**BLOCKED_POD, "reason": "Finalizers", "message": "their controllers must remove them"},
            [],
        ),
    ],
)
def test_remedies_name_what_would_unblock_pod(blocked_pod: dict[str, Any], expected_remedies: list[str]) -> None:
    (group,) = group_blocked_pods([blocked_pod])

    assert list(map(str, group.remedies)) == expected_remedies


def test_pod_without_message_refers_to_its_events() -> None:
    (group,) = group_blocked_pods([{"namespace": "shop", "name": "web-1", "reason": "Error"}])

    assert (group.message, group.remedies) == ("see the events of the pod", ())


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        ("2026-01-01T12:01:05Z", "12:01:05"),
        ("2026-01-01T13:01:05.5+01:00", "12:01:05"),
        ("soon", ""),
    ],
)
def test_pod_that_is_retried_later_is_shown_with_retry_time(retry_after: str, expected: str) -> None:
    """Check that a pod whose eviction was denied is shown with the time of the next eviction attempt."""
    entry = {"namespace": "shop", "name": "web-1", "reason": "Error", "message": "no", "retryAfter": retry_after}

    (group,) = group_blocked_pods([entry])

    assert group.retry_after == expected


def test_pods_are_grouped_by_cause() -> None:
    """Check that a group has the pods of one cause, the earliest start and the earliest next attempt."""
    refused = {"namespace": "shop", "reason": "Error", "message": "no"}
    entries: list[dict[str, Any]] = [
        {**refused, "name": "a", "since": "2026-01-01T12:00:10Z", "retryAfter": "2026-01-01T12:02:00Z"},
        {**BLOCKED_POD, "name": "b"},
        {**refused, "name": "c", "since": "2026-01-01T12:00:05Z", "retryAfter": "2026-01-01T12:01:00Z"},
        {**refused, "name": "d", "namespace": "other"},
        {**refused, "name": "e", "message": "never"},
    ]

    groups = group_blocked_pods(entries)

    assert [group.pods for group in groups] == [("shop/a", "shop/c", "other/d"), ("shop/b",), ("shop/e",)]
    assert (groups[0].since, groups[0].retry_after) == ("2026-01-01T12:00:05Z", "12:01:00")
    assert (groups[1].counts, groups[2].counts) == ("2/2", "")
    assert (groups[0].format_pods(), groups[0].format_pods(3)) == ("shop/a and 2 more", "shop/a, shop/c, other/d")


def test_drain_option_is_one_cause_in_all_namespaces() -> None:
    """Check that a group without a budget has no remedy besides its message, and that the largest group is first."""
    forced = {"namespace": "shop", "reason": "Force", "message": "set spec.drain.force"}
    entries: list[dict[str, Any]] = [
        BLOCKED_POD,
        {**forced, "name": "a"},
        {**forced, "name": "b", "namespace": "other"},
    ]

    groups = group_blocked_pods(entries)

    assert [(group.reason, group.pods) for group in groups] == [
        ("Force", ("shop/a", "other/b")),
        ("DisruptionBudget", ("shop/web-1",)),
    ]
    assert (groups[0].remedies, groups[0].message) == ((), "set spec.drain.force")


def test_pods_under_one_budget_are_one_cause_whatever_its_counts() -> None:
    """Check that budgets with equal names in two namespaces are two causes, and that counts do not matter."""
    entries = [BLOCKED_POD, {**BLOCKED_POD, "name": "b", "healthy": 1}, {**BLOCKED_POD, "namespace": "other"}]

    assert [group.pods for group in group_blocked_pods(entries)] == [("shop/web-1", "shop/b"), ("other/web-1",)]
