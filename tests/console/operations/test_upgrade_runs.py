"""Tests for the selection of a MutexRunConfig by name."""

from __future__ import annotations

import pytest

from console.operations.upgrade_runs import is_run_config_named

RUN = {"metadata": {"namespace": "upgrades", "name": "example"}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("example", True), ("upgrades/example", True), ("elsewhere/example", False), ("exam", False), ("", False)],
)
def test_run_is_selected_by_name_or_namespace_and_name(name: str, expected: bool) -> None:
    """MUT-48: a MutexRunConfig is selected by its name with or without its namespace; an empty name selects none."""
    assert is_run_config_named(RUN, name) is expected
