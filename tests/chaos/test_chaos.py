"""Short fault injection runs of about twenty seconds; `make chaos` runs longer and with many seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import upgrade_run
from chaos.__main__ import run
from tests.proofs import proves


@pytest.mark.e2e
def test_twenty_seconds_of_mischief_violate_nothing(tmp_path: Path) -> None:
    """Check that crashes, faulty responses and user errors violate no invariant, and that the final state is right."""
    found = run("local", 1, 20, tmp_path, nodes=4, pods=24)

    assert found.is_good, (found.violations, found.left, found.ended, found.failed)
    assert found.tally.judged["evictions"]
    assert sum(found.done.values()) > 10


@pytest.mark.e2e
@proves("MUT-42", "MUT-44", "MUT-49")
def test_an_upgrade_amid_mischief_violates_nothing(tmp_path: Path) -> None:
    """Check that an upgrade during faults releases one node at a time, creates each Job once and restores the pools."""
    said: list[str] = []
    found = upgrade_run.run("local", 1, 15, tmp_path, 4, said.append)

    assert found.is_good, (said, found.left, found.ended, found.failed)
    assert found.tally.judged["releases"] == 4
    assert sum(found.done.values()) > 5
