"""Tests for the grouping of blocked pods by cause, and for the remedies that would unblock them."""

from __future__ import annotations

from typing import Any

import pytest

from kube.maintenance.blocked_groups import group_blocked_pods

BLOCKED_POD = {
    "namespace": "shop",
    "name": "web-1",
    "reason": "DisruptionBudget",
    "budget": "web",
    "healthy": 2,
    "needed": 2,
}
STUCK_POD = {"namespace": "shop", "name": "web-1", "message": "stuck"}
FORCED_DELETION = (
    "once the machine is switched off, remove the pod: kubectl -n shop delete pod web-1 --grace-period=0 --force"
)
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
            {**BLOCKED_POD, "looserBudget": "minAvailable=1"},
            [
                f"1 more ready pod under this budget {HOW_TO_GET_MORE}",
                """or a looser budget: kubectl -n shop patch pdb web -p '{"spec":{"minAvailable":1}}'""",
            ],
        ),
        (
            {**BLOCKED_POD, "looserBudget": "minAvailable=1'; reboot"},
            [
                f"1 more ready pod under this budget {HOW_TO_GET_MORE}",
                "or a looser budget: kubectl -n shop edit pdb web",
            ],
        ),
        (
            {**BLOCKED_POD, "reason": "MultipleBudgets", "budget": "one, two", "message": "several budgets"},
            ["several budgets", "delete one of them: kubectl -n shop delete pdb two"],
        ),
        (
            {**BLOCKED_POD, "reason": "MultipleBudgets", "budget": "one… (9 more characters)", "message": "no"},
            ["no"],
        ),
        (
            {**STUCK_POD, "reason": "Finalizers"},
            [
                "stuck",
                "if these controllers no longer exist, remove the finalizers: "
                """kubectl -n shop patch pod web-1 --type merge -p '{"metadata":{"finalizers":null}}'""",
            ],
        ),
        *(
            ({**STUCK_POD, "reason": reason}, ["stuck", FORCED_DELETION])
            for reason in ("NodeUnreachable", "VolumesMounted", "Terminating")
        ),
        ({"namespace": "shop", "name": "web-1", "reason": "Error"}, ["see the events of the pod"]),
    ],
)
def test_remedies_state_what_would_unblock_pod(blocked_pod: dict[str, Any], expected_remedies: list[str]) -> None:
    (group,) = group_blocked_pods([blocked_pod])

    assert [*map(str, group.advice)] == expected_remedies


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        ("2026-01-01T12:01:05Z", "12:01:05"),
        ("2026-01-01T13:01:05.5+01:00", "12:01:05"),
        ("soon", ""),
    ],
)
def test_pod_that_is_retried_later_is_shown_with_retry_time(retry_after: str, expected: str) -> None:
    """Check that a pod whose eviction was denied is shown with the time of its next eviction attempt."""
    entry = {"namespace": "shop", "name": "web-1", "reason": "Error", "message": "no", "retryAfter": retry_after}

    (group,) = group_blocked_pods([entry])

    assert group.retry_after == expected


def test_blocked_pods_are_grouped_by_cause() -> None:
    """Check that a group has all pods that one cause blocks, the earliest start and the earliest next attempt."""
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


def test_drain_flag_is_one_cause_in_all_namespaces() -> None:
    """Check that a group without a PDB has no remedy except in its message, and that the largest group is first."""
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
    assert (groups[0].remedies, [*map(str, groups[0].advice)]) == ((), ["set spec.drain.force"])


@pytest.mark.parametrize(
    ("reason", "text", "patch"),
    [
        ("Force", "set spec.drain.force", '{"force":true}'),
        ("DeleteEmptyDirData", "set spec.drain.deleteEmptyDirData", '{"deleteEmptyDirData":true}'),
        ("IgnoreDaemonSets", "set spec.drain.ignoreDaemonSets", '{"ignoreDaemonSets":true}'),
        ("PodSelector", "omit spec.drain.podSelector", '{"podSelector":null}'),
        ("DisableEviction", "omit spec.drain.disableEviction", '{"disableEviction":null}'),
    ],
)
def test_remedy_for_drain_option_changes_named_maintenance(reason: str, text: str, patch: str) -> None:
    """DRN-1a: the remedy for a pod that a drain option blocks is the command that changes this option."""
    entry = {"namespace": "shop", "name": "web-1", "reason": reason, "message": "no"}

    (group,) = group_blocked_pods([entry], "nodemaintenance.example/node-1")

    command = f"""kubectl patch nodemaintenance.example/node-1 --type merge -p '{{"spec":{{"drain":{patch}}}}}'"""
    assert [*map(str, group.advice)] == ["no", f"{text}: {command}"]


def test_unready_pods_of_group_have_separate_remedy() -> None:
    """Check that a group with ready and unready pods has one remedy command for each kind of pod."""
    entries = [
        {**BLOCKED_POD, "looserBudget": "minAvailable=1"},
        {**BLOCKED_POD, "name": "b", "looserBudget": "unhealthyPodEvictionPolicy=AlwaysAllow"},
        {**BLOCKED_POD, "name": "c", "looserBudget": "minAvailable=1"},
    ]

    (group,) = group_blocked_pods(entries)

    assert [remedy.command for remedy in group.remedies] == [
        "",
        """kubectl -n shop patch pdb web -p '{"spec":{"minAvailable":1}}'""",
        """kubectl -n shop patch pdb web -p '{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}'""",
    ]


@pytest.mark.parametrize("value", ["2", None, {}])
def test_malformed_entries_of_other_writers_are_grouped(value: object) -> None:
    """Check that counts and times of a wrong type cause no error, since any client may have written the status."""
    entry = {**BLOCKED_POD, "healthy": value, "needed": value, "since": value, "looserBudget": value}

    (group,) = group_blocked_pods([entry, {**BLOCKED_POD, "since": "2026-01-01T12:00:05Z"}])

    assert (group.since, len(group.pods)) == ("2026-01-01T12:00:05Z", 2)


def test_pods_of_one_pdb_have_one_cause_whatever_its_counts() -> None:
    """Check that PDBs with equal names in two namespaces are two causes, whatever their counts."""
    entries = [BLOCKED_POD, {**BLOCKED_POD, "name": "b", "healthy": 1}, {**BLOCKED_POD, "namespace": "other"}]

    assert [group.pods for group in group_blocked_pods(entries)] == [("shop/web-1", "shop/b"), ("other/web-1",)]
