"""Tests that the observer of a fault injection run records every change, or reports a gap in a watch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chaos.invariant_checker import MAINTENANCES, ObjectObservation, Observation, WatchGap
from chaos.observer import ClusterObserver, GapDetector
from localcluster.cluster import LocalCluster


@pytest.mark.slow
def test_error_of_observer_thread_is_raised_on_exit(installed_cluster: LocalCluster, tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.touch()

    with pytest.raises(FileNotFoundError, match="audit"), ClusterObserver(installed_cluster.kubeconfig, log, print):
        log.unlink()


def test_watch_gap_lasts_from_first_closed_watch_until_next_list() -> None:
    """Check that a watch gap lasts from the first closed watch until the next complete list.

    Further failed watches do not shorten the gap. The gap includes the list itself, even if it contains no new objects.
    """
    observations: list[Observation] = []
    detector = GapDetector(MAINTENANCES, observations.append)
    detector.record_object(ObjectObservation(0.0, MAINTENANCES, {"metadata": {"resourceVersion": "7"}}))
    detector.on_listed()
    detector.on_watch_closed()
    watch_closed_at = time.time()
    detector.on_watch_closed()
    detector.on_listed()

    [gap] = [observation for observation in observations[2:] if isinstance(observation, WatchGap)]
    assert (gap.after_version, gap.until_version) == (7, 7)
    assert gap.started_at <= watch_closed_at <= gap.ended_at


@pytest.mark.parametrize(
    "observations", [[], [ObjectObservation(0.0, MAINTENANCES, {"metadata": {"resourceVersion": "7"}})]]
)
def test_watch_gap_does_not_start_before_previous_list(observations: list[ObjectObservation]) -> None:
    """Check that a watch gap does not start before the previous list, even if that list was empty."""
    recorded_observations: list[Observation] = []
    detector = GapDetector(MAINTENANCES, recorded_observations.append)
    for observation in observations:
        detector.record_object(observation)
    for _ in range(2):
        detector.on_watch_closed()
        detector.on_listed()
    listed_at = time.time()
    detector.on_watch_closed()
    detector.on_listed()

    assert isinstance(recorded_observations[-1], WatchGap)
    assert recorded_observations[-1].started_at >= listed_at
