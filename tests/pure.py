"""A pytest plugin for `make mutants`: of what is collected, the tests that need no cluster; a mutant gets no server."""

from __future__ import annotations

import pytest

SERVERS = frozenset({"cluster", "quiet"})
"""The fixtures that start one; all others that have one ask for these."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what asks for a server."""
    left_out = [item for item in items if SERVERS & set(getattr(item, "fixturenames", ()))]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
