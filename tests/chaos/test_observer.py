"""The observer of a run sees every change, or reports the gap."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chaos.observer import Observer, Sight
from chaos.observations import MAINTENANCES, Blind, Observation, Sighting
from localcluster.cluster import LocalCluster


@pytest.mark.slow
def test_an_observer_that_has_failed_does_not_pass_for_one_that_saw_nothing(
    installed: LocalCluster, tmp_path: Path
) -> None:
    log = tmp_path / "audit.log"
    log.touch()

    with pytest.raises(FileNotFoundError, match="audit"), Observer(installed.kubeconfig, log, print):
        log.unlink()


def test_a_gap_lasts_from_the_first_watch_that_broke_until_the_list() -> None:
    """Check that a gap lasts from the first broken watch to the next complete list.

    Failed attempts to watch in between do not change that. A list belongs to the gap, even if it contains nothing new.
    """
    taken: list[Observation] = []
    sight = Sight(MAINTENANCES, taken.append)
    sight.see(Sighting(0.0, MAINTENANCES, {"metadata": {"resourceVersion": "7"}}))
    sight.listed()
    sight.closed()
    broken = time.time()
    sight.closed()
    sight.listed()

    [gap] = [seen for seen in taken[2:] if isinstance(seen, Blind)]
    assert (gap.after, gap.until) == (7, 7)
    assert gap.since <= broken <= gap.till


@pytest.mark.parametrize("seen", [[], [Sighting(0.0, MAINTENANCES, {"metadata": {"resourceVersion": "7"}})]])
def test_a_gap_does_not_begin_before_the_last_list(seen: list[Sighting]) -> None:
    """Check that a gap starts after the previous list at the earliest, even if that list was empty."""
    taken: list[Observation] = []
    sight = Sight(MAINTENANCES, taken.append)
    for sighting in seen:
        sight.see(sighting)
    for _ in range(2):
        sight.closed()
        sight.listed()
    listed = time.time()
    sight.closed()
    sight.listed()

    assert isinstance(taken[-1], Blind)
    assert taken[-1].since >= listed
