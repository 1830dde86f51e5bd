"""Test that resync ticks write nothing to finished maintenances while other tests run."""

from __future__ import annotations

import pytest

from tests.chain.environment import EventChainEnvironment, FinishedMaintenances
from tests.proofs import proves

TICK_COUNT = 5
"""Number of resync ticks to wait for; PingSource sends one every 15 s."""


@pytest.mark.slow
@proves("X-3", "NMO-12")
def test_ticks_write_nothing_to_finished_maintenances(
    environment: EventChainEnvironment, finished_maintenances: FinishedMaintenances
) -> None:
    """X-3, NMO-12: the product does not write to three finished maintenances during a minute of resync ticks."""
    finished_maintenances.wait_for_tick_count(TICK_COUNT)

    assert finished_maintenances.list_writes_after_success() == []
    assert finished_maintenances.list_resource_versions() == finished_maintenances.initial_resource_versions
