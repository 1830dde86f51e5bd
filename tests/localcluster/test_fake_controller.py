"""Tests that a fake controller reconciles soon after an object changes, and otherwise only rarely."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from typing import ClassVar

import pytest

from kube.client.api_errors import Rejected
from kube.nodes import NODES_PATH, build_node_path
from localcluster.cluster import LocalCluster
from localcluster.simulators.controller import MAX_IDLE_SECONDS, FakeController

QUIET_SECONDS = 1.0
"""Seconds within which a controller reconciles after a change."""
UNSERVED_PATH = "/apis/nowhere.example/v1/things"


class CountingController(FakeController):
    """A controller that records its reconciliations; the first `rejection_count` of them fail with a rejection."""

    watched: ClassVar[Mapping[str, str]] = {NODES_PATH: "", UNSERVED_PATH: ""}

    def __init__(self, local_cluster: LocalCluster, rejection_count: int = 0) -> None:
        super().__init__(local_cluster.get_client(), 0.01)
        self.reconciliations: queue.Queue[float] = queue.Queue()
        self._rejections_left = rejection_count

    def reconcile(self) -> None:
        self.reconciliations.put(time.monotonic())
        if self._rejections_left:
            self._rejections_left -= 1
            raise Rejected(403, "forbidden")

    def wait_until_idle(self) -> None:
        """Wait until no reconciliation has occurred for `QUIET_SECONDS`; fail after `MAX_IDLE_SECONDS`."""
        started_at = time.monotonic()
        while True:
            try:
                self.reconciliations.get(timeout=QUIET_SECONDS)
            except queue.Empty:
                assert time.monotonic() - started_at < MAX_IDLE_SECONDS
                return


@pytest.mark.slow
def test_only_change_causes_reconciliation(cluster: LocalCluster) -> None:
    """Check that only a change causes a reconciliation, even if one of the watched kinds is not installed."""
    with CountingController(cluster) as controller:
        controller.wait_until_idle()
        cluster.get_client().patch(
            build_node_path("node-1"), {"metadata": {"annotations": {"tests/fake_controller": "seen"}}}
        )

        controller.reconciliations.get(timeout=5)
        controller.wait_until_idle()

    assert controller.errors == []


@pytest.mark.slow
def test_rejected_reconciliation_is_recorded_and_retried(cluster: LocalCluster) -> None:
    with CountingController(cluster, rejection_count=3) as controller:
        for _ in range(4):
            controller.reconciliations.get(timeout=5)

    assert controller.errors == ["forbidden"] * 3


def test_stopped_controller_does_not_reconcile(cluster: LocalCluster) -> None:
    with CountingController(cluster) as controller:
        controller.reconciliations.get(timeout=5)

    while not controller.reconciliations.empty():
        controller.reconciliations.get()
    cluster.get_client().patch(
        build_node_path("node-1"), {"metadata": {"annotations": {"tests/fake_controller": "late"}}}
    )
    with pytest.raises(queue.Empty):
        controller.reconciliations.get(timeout=QUIET_SECONDS)
