"""Tests of the one-line summary of blocked pods."""

from __future__ import annotations

from kube.budgets import Blocked
from kube.maintenance.blocked_pods import summary

SENTENCE = "The disruption budget keep needs 3 healthy pods and has 3 currently"


def blocked(name: str, message: str = SENTENCE) -> Blocked:
    return Blocked({"namespace": "ns", "name": name, "uid": name}, "DisruptionBudget", message)


def test_a_summary_of_five_is_whole() -> None:
    """NMO-13: a summary of five pods mentions no further pods."""
    assert "more" not in summary([blocked(name) for name in "edcba"])


def test_the_summary_names_five() -> None:
    """NMO-13: the summary for `lastError` is one line that names five pods, grouped by message."""
    others = [blocked(name) for name in "gfedca"]
    line = summary([*others, blocked("b", "slow down")])

    assert line == f"ns/a, ns/c, ns/d, ns/e: {SENTENCE}; ns/b: slow down; and 2 more"
    assert summary([]) == ""
