"""What is done stays done: maintenances that have ended rest beside other tests, tick after tick."""

from __future__ import annotations

from tests.chain.scene import Resting, Scene
from tests.proofs import proves

TICKS = 5
"""They come every 15 s."""


@proves("X-3", "NMO-12")
def test_what_is_drained_rests(scene: Scene, resting: Resting) -> None:
    """X-3, NMO-12: three finished maintenances, and a minute of resync ticks without a single write of ours to them."""
    resting.await_ticks(TICKS)

    assert resting.writes() == []
    assert resting.versions() == resting.first_versions
