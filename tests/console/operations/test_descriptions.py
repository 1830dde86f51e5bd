"""Unit tests of the text for ages, for node states and for what would unblock a pod."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from console.operations.descriptions import build_node_report, format_age, suggest_remedy

TAINTED = {"taints": [{"key": "kubevirt.io/drain", "effect": "NoSchedule"}]}
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
BLOCKED = {
    "namespace": "shop",
    "name": "web-1",
    "reason": "DisruptionBudget",
    "budget": "web",
    "healthy": 2,
    "needed": 2,
}


@pytest.mark.parametrize(
    ("item", "expected_start"),
    [
        (BLOCKED, "1 more ready pod under this budget, or a looser budget: kubectl -n shop edit pdb web"),
        ({**BLOCKED, "allowsNone": True}, "a looser budget: kubectl -n shop edit pdb web (this one allows no eviction"),
        ({**BLOCKED, "healthy": 1, "needed": 3}, "3 more ready pods under this budget"),
        (
            {**BLOCKED, "reason": "Finalizers", "message": "their controllers must remove them"},
            "their controllers must remove them",
        ),
        ({"namespace": "shop", "name": "web-1", "reason": "Error"}, "see the events of the pod"),
    ],
)
def test_remedy_names_what_would_unblock_the_pod(item: dict[str, Any], expected_start: str) -> None:
    assert suggest_remedy(item).startswith(expected_start)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("2026-01-01T12:00:01Z", "0s"),
        ("2026-01-01T11:58:01Z", "119s"),
        ("2026-01-01T11:58:00Z", "2m"),
        ("2026-01-01T10:00:00Z", "2h"),
        ("2025-12-30T12:00:00Z", "2d"),
    ],
)
def test_age_is_formatted_with_one_unit(since: str, expected: str) -> None:
    assert format_age(since, NOW) == expected


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({}, "schedulable"),
        (TAINTED, "schedulable, except for the taint kubevirt.io/drain"),
        ({**TAINTED, "unschedulable": True}, "cordoned, takes no new pods"),
    ],
)
def test_node_state_mentions_a_drain_taint_set_by_hand(spec: dict[str, Any], state: str) -> None:
    assert build_node_report("node-1", {"metadata": {"name": "node-1"}, "spec": spec})["state"] == state
