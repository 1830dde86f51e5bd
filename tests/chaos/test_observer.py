"""The observer of a run sees every change, or reports the gap."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chaos.observations import MAINTENANCES, ObjectObservation, Observation, WatchGap
from chaos.observer import ClusterObserver, GapDetector
from localcluster.cluster import LocalCluster


@pytest.mark.slow
def test_failed_observer_raises_its_error(installed_cluster: LocalCluster, tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.touch()

    with pytest.raises(FileNotFoundError, match="audit"), ClusterObserver(installed_cluster.kubeconfig, log, print):
        log.unlink()


def test_gap_lasts_from_first_broken_watch_until_list() -> None:
    """Check that a gap lasts from the first broken watch to the next complete list.

    Failed attempts to watch in between do not change that. A list belongs to the gap, even if it contains nothing new.
    """
    observations: list[Observation] = []
    detector = GapDetector(MAINTENANCES, observations.append)
    detector.record_object(ObjectObservation(0.0, MAINTENANCES, {"metadata": {"resourceVersion": "7"}}))
    detector.on_listed()
    detector.on_watch_closed()
    broken = time.time()
    detector.on_watch_closed()
    detector.on_listed()

    [gap] = [observation for observation in observations[2:] if isinstance(observation, WatchGap)]
    assert (gap.after_version, gap.until_version) == (7, 7)
    assert gap.started_at <= broken <= gap.ended_at


@pytest.mark.parametrize(
    "observations", [[], [ObjectObservation(0.0, MAINTENANCES, {"metadata": {"resourceVersion": "7"}})]]
)
def test_gap_does_not_start_before_previous_list(observations: list[ObjectObservation]) -> None:
    """Check that a gap starts after the previous list at the earliest, even if that list was empty."""
    taken: list[Observation] = []
    detector = GapDetector(MAINTENANCES, taken.append)
    for sighting in observations:
        detector.record_object(sighting)
    for _ in range(2):
        detector.on_watch_closed()
        detector.on_listed()
    listed = time.time()
    detector.on_watch_closed()
    detector.on_listed()

    assert isinstance(taken[-1], WatchGap)
    assert taken[-1].started_at >= listed
