"""Unit tests of the text for ages, for node states and for what would unblock a pod."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from console.operations.descriptions import age, node_report, remedy

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
    ("item", "words"),
    [
        (BLOCKED, "1 more ready pod under this budget, or a looser budget: kubectl -n shop edit pdb web"),
        ({**BLOCKED, "allowsNone": True}, "a looser budget: kubectl -n shop edit pdb web (this one lets no pod go"),
        ({**BLOCKED, "healthy": 1, "needed": 3}, "3 more ready pods under this budget"),
        (
            {**BLOCKED, "reason": "Finalizers", "message": "their owner must take them off"},
            "their owner must take them off",
        ),
        ({"namespace": "shop", "name": "web-1", "reason": "Error"}, "see the events of the pod"),
    ],
)
def test_a_blocked_pod_comes_with_what_would_unblock_it(item: dict[str, Any], words: str) -> None:
    assert remedy(item).startswith(words)


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("2026-01-01T12:00:01Z", "0s"),
        ("2026-01-01T11:58:01Z", "119s"),
        ("2026-01-01T11:58:00Z", "2m"),
        ("2026-01-01T10:00:00Z", "2h"),
        ("2025-12-30T12:00:00Z", "2d"),
    ],
)
def test_an_age_is_short(since: str, words: str) -> None:
    assert age(since, NOW) == words


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({}, "schedulable"),
        (TAINTED, "schedulable, but for the taint kubevirt.io/drain"),
        ({**TAINTED, "unschedulable": True}, "cordoned, takes no new pods"),
    ],
)
def test_a_node_that_somebody_tainted_by_hand_says_so(spec: dict[str, Any], state: str) -> None:
    assert node_report("node-1", {"metadata": {"name": "node-1"}, "spec": spec})["state"] == state
