"""Which MutexRunConfigs a name means, on plain objects."""

from __future__ import annotations

import pytest

from console.operations.upgrade_runs import is_named

RUN = {"metadata": {"namespace": "upgrades", "name": "example"}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("example", True), ("upgrades/example", True), ("elsewhere/example", False), ("exam", False), ("", False)],
)
def test_a_run_is_meant_by_its_name_alone_or_with_its_namespace(name: str, expected: bool) -> None:
    """MUT-48: no name is no run's, and never that of all."""
    assert is_named(RUN, name) is expected
