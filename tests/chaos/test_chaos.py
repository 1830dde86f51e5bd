"""Twenty seconds of it: `make chaos` is longer, and of many seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.__main__ import run


@pytest.mark.e2e
def test_twenty_seconds_of_mischief_violate_nothing(tmp_path: Path) -> None:
    """Crashes, faulty answers and careless users, and all is as the objects say soon afterwards."""
    found = run("local", 1, 20, tmp_path, nodes=4, pods=24)

    assert found.is_good, (found.violations, found.left, found.ended)
    assert found.tally.judged["evictions"]
    assert sum(found.done.values()) > 10
