"""Tests of the one-line summary of blocked pods."""

from __future__ import annotations

from kube.budgets import BlockedPod
from kube.maintenance.blocked_pods import format_summary

BUDGET_MESSAGE = "The disruption budget keep needs 3 healthy pods and has 3 currently"


def make_blocked_pod(name: str, message: str = BUDGET_MESSAGE) -> BlockedPod:
    return BlockedPod({"namespace": "ns", "name": name, "uid": name}, "DisruptionBudget", message)


def test_summary_of_five_pods_has_no_remainder() -> None:
    """NMO-13: a summary of five pods mentions no further pods."""
    assert "more" not in format_summary([make_blocked_pod(name) for name in "edcba"])


def test_summary_names_five_pods_by_message() -> None:
    """NMO-13: the summary for `lastError` is one line that names five pods, grouped by message."""
    other_pods = [make_blocked_pod(name) for name in "gfedca"]
    line = format_summary([*other_pods, make_blocked_pod("b", "slow down")])

    assert line == f"ns/a, ns/c, ns/d, ns/e: {BUDGET_MESSAGE}; ns/b: slow down; and 2 more"
    assert format_summary([]) == ""
