"""Test that ticks write nothing to finished maintenances while other tests run."""

from __future__ import annotations

from tests.chain.environment import Resting, Scene
from tests.proofs import proves

TICKS = 5
"""Number of ticks to wait for; PingSource sends one every 15 s."""


@proves("X-3", "NMO-12")
def test_what_is_drained_rests(scene: Scene, resting: Resting) -> None:
    """X-3, NMO-12: the product does not write to three finished maintenances during a minute of ticks."""
    resting.await_ticks(TICKS)

    assert resting.writes() == []
    assert resting.versions() == resting.first_versions
