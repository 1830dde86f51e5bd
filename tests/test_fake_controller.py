"""A fake controller reconciles when an object changes, and rarely otherwise."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from typing import ClassVar

import pytest

from kube.client.api_errors import Rejected
from kube.nodes import NODES_PATH, build_node_path
from localcluster.cluster import LocalCluster
from tests.fake_controller import MAX_IDLE_SECONDS, FakeController

QUIET_SECONDS = 1.0
"""Seconds within which a change would have been seen."""
UNSERVED_PATH = "/apis/nowhere.example/v1/things"


class CountingController(FakeController):
    """A controller that counts its reconciliations and raises a given number of rejections."""

    watched: ClassVar[Mapping[str, str]] = {NODES_PATH: "", UNSERVED_PATH: ""}

    def __init__(self, local_cluster: LocalCluster, rejection_count: int = 0) -> None:
        super().__init__(local_cluster.get_client(), 0.01)
        self.reconciliations: queue.Queue[float] = queue.Queue()
        self._refusals = rejection_count

    def reconcile(self) -> None:
        self.reconciliations.put(time.monotonic())
        if self._refusals:
            self._refusals -= 1
            raise Rejected(403, "not for you")

    def await_idle(self) -> None:
        """Return when no reconciliation occurred for a while; fail if that takes as long as the idle interval."""
        began = time.monotonic()
        while True:
            try:
                self.reconciliations.get(timeout=QUIET_SECONDS)
            except queue.Empty:
                assert time.monotonic() - began < MAX_IDLE_SECONDS
                return


@pytest.mark.slow
def test_only_a_change_causes_reconciliation(cluster: LocalCluster) -> None:
    """Check that a change causes a reconciliation and that none follows without one; one watched kind is missing."""
    with CountingController(cluster) as part:
        part.await_idle()
        cluster.get_client().patch(
            build_node_path("node-1"), {"metadata": {"annotations": {"tests/fake_controller": "seen"}}}
        )

        part.reconciliations.get(timeout=5)
        part.await_idle()

    assert part.errors == []


@pytest.mark.slow
def test_rejected_step_is_recorded_and_retried(cluster: LocalCluster) -> None:
    with CountingController(cluster, rejection_count=3) as part:
        for _ in range(4):
            part.reconciliations.get(timeout=5)

    assert part.errors == ["not for you"] * 3


def test_stopped_controller_does_not_reconcile(cluster: LocalCluster) -> None:
    with CountingController(cluster) as part:
        part.reconciliations.get(timeout=5)

    while not part.reconciliations.empty():
        part.reconciliations.get()
    cluster.get_client().patch(
        build_node_path("node-1"), {"metadata": {"annotations": {"tests/fake_controller": "late"}}}
    )
    with pytest.raises(queue.Empty):
        part.reconciliations.get(timeout=QUIET_SECONDS)
