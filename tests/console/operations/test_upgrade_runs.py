"""Unit tests of which MutexRunConfigs a name on the command line selects."""

from __future__ import annotations

import pytest

from console.operations.upgrade_runs import is_named

RUN = {"metadata": {"namespace": "upgrades", "name": "example"}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("example", True), ("upgrades/example", True), ("elsewhere/example", False), ("exam", False), ("", False)],
)
def test_a_run_is_meant_by_its_name_alone_or_with_its_namespace(name: str, expected: bool) -> None:
    """MUT-48: A run is selected by its name, with or without the namespace; an empty name selects no run."""
    assert is_named(RUN, name) is expected
