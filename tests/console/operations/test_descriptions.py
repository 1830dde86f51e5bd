"""Tests for the formatting of ages, times and node states."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from console.operations.descriptions import (
    build_node_report,
    format_age,
    parse_time_or_age,
    suggest_similar,
)

TAINTED_SPEC = {"taints": [{"key": "kubevirt.io/drain", "effect": "NoSchedule"}]}
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)


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
    ("spec", "expected_state"),
    [
        ({}, "schedulable"),
        (TAINTED_SPEC, "schedulable, except for the taint kubevirt.io/drain"),
        ({**TAINTED_SPEC, "unschedulable": True}, "cordoned, takes no new pods"),
    ],
)
def test_node_state_mentions_drain_taint_of_schedulable_node(spec: dict[str, Any], expected_state: str) -> None:
    assert build_node_report("node-1", {"metadata": {"name": "node-1"}, "spec": spec})["state"] == expected_state


def test_relative_time_is_subtracted_from_current_time() -> None:
    """Check that a relative time such as `10m` is subtracted from the current time, and has a time zone."""
    earliest_now = datetime.now(timezone.utc)
    parsed = parse_time_or_age("2h")

    assert earliest_now <= parsed + timedelta(hours=2) <= datetime.now(timezone.utc)


@pytest.mark.parametrize("text", ["soon", "", "999999d", "1w", "9999-12-31T23:59:59-23:59"])
def test_error_about_invalid_time_names_valid_formats(text: str) -> None:
    """Check that the error about an invalid time, or a time before the year 1, names the valid formats."""
    with pytest.raises(ValueError, match="is neither an age, such as 10m"):
        parse_time_or_age(text)


def test_error_suggests_similar_name_before_remedy() -> None:
    names = ["worker-1", "worker-2", "control-plane"]

    assert (
        suggest_similar("wroker-2", names, "see kubectl get nodes") == 'did you mean "worker-2"? See kubectl get nodes'
    )
    assert suggest_similar("db", names, "see kubectl get nodes") == "see kubectl get nodes"


def test_error_suggests_none_of_several_equally_similar_names() -> None:
    """Check that no name is suggested if two names are equally similar, unless another name is more similar."""
    names = ["node-1", "node-2"]

    assert suggest_similar("node-5", names, "see kubectl get nodes") == "see kubectl get nodes"
    assert suggest_similar("node-5", [*names, "node-50"], "see it").startswith('did you mean "node-50"? ')
    assert suggest_similar("node-5", ["node-1", "node-1"], "see it").startswith('did you mean "node-1"? ')
