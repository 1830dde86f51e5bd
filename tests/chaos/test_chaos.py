"""Twenty seconds of it: `make chaos` is longer, and of many seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import upgrades
from chaos.__main__ import run
from tests.proofs import proves


@pytest.mark.e2e
def test_twenty_seconds_of_mischief_violate_nothing(tmp_path: Path) -> None:
    """Crashes, faulty answers and careless users, and all is as the objects say soon afterwards."""
    found = run("local", 1, 20, tmp_path, nodes=4, pods=24)

    assert found.is_good, (found.violations, found.left, found.ended, found.failed)
    assert found.tally.judged["evictions"]
    assert sum(found.done.values()) > 10


@pytest.mark.e2e
@proves("MUT-42", "MUT-44", "MUT-49")
def test_an_upgrade_amid_mischief_violates_nothing(tmp_path: Path) -> None:
    """One node at a time, each Job once, and the pools as they were, whatever is killed, lost and doubled."""
    said: list[str] = []
    found = upgrades.run("local", 1, 15, tmp_path, 4, said.append)

    assert found.is_good, (said, found.left, found.ended, found.failed)
    assert found.tally.judged["releases"] == 4
    assert sum(found.done.values()) > 5
