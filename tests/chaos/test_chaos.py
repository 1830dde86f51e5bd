"""Fault injection tests of about twenty seconds; `make chaos` runs longer, with many seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import upgrade_run
from chaos.__main__ import run_drains
from tests.proofs import proves


@pytest.mark.e2e
def test_faults_violate_no_invariant(tmp_path: Path) -> None:
    """Check that crashes, faulty responses and user errors violate no invariant and lead to a correct final state."""
    report = run_drains("local", 1, 20, tmp_path, nodes=4, pods=24)

    assert report.has_passed, (report.violations, report.problems, report.exited_servers, report.failures)
    assert report.tally.checked["evictions"]
    assert sum(report.completed_action_counts.values()) > 10


@pytest.mark.e2e
@proves("MUT-42", "MUT-44", "MUT-49")
def test_faults_during_upgrade_violate_no_invariant(tmp_path: Path) -> None:
    """Check that an upgrade with faults releases one node at a time, runs each Job once and restores the pools."""
    output_lines: list[str] = []
    report = upgrade_run.run_upgrade("local", 1, 15, tmp_path, 4, output_lines.append)

    assert report.has_passed, (output_lines, report.problems, report.exited_servers, report.failures)
    assert report.tally.checked["releases"] == 4
    assert sum(report.completed_action_counts.values()) > 5
