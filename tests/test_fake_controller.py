"""A fake controller reconciles when an object changes, and rarely otherwise."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from typing import ClassVar

import pytest

from kube.client.api_errors import Rejected
from kube.nodes import NODES, node_path
from localcluster.cluster import LocalCluster
from tests.fake_controller import REST, Player

QUIET = 1.0
"""Seconds within which a change would have been seen."""
ABSENT = "/apis/nowhere.example/v1/things"


class Counting(Player):
    """A controller that counts its reconciliations and raises a given number of rejections."""

    watched: ClassVar[Mapping[str, str]] = {NODES: "", ABSENT: ""}

    def __init__(self, cluster: LocalCluster, refusals: int = 0) -> None:
        super().__init__(cluster.door(), 0.01)
        self.looks: queue.Queue[float] = queue.Queue()
        self._refusals = refusals

    def look(self) -> None:
        self.looks.put(time.monotonic())
        if self._refusals:
            self._refusals -= 1
            raise Rejected(403, "not for you")

    def settle(self) -> None:
        """Return when no reconciliation occurred for a while; fail if that takes as long as the idle interval."""
        began = time.monotonic()
        while True:
            try:
                self.looks.get(timeout=QUIET)
            except queue.Empty:
                assert time.monotonic() - began < REST
                return


@pytest.mark.slow
def test_a_change_is_looked_at_and_rest_is_rest(cluster: LocalCluster) -> None:
    """Check that a change causes a reconciliation and that none follows without one; one watched kind is missing."""
    with Counting(cluster) as part:
        part.settle()
        cluster.door().patch(node_path("node-1"), {"metadata": {"annotations": {"tests/fake_controller": "seen"}}})

        part.looks.get(timeout=5)
        part.settle()

    assert part.trouble == []


@pytest.mark.slow
def test_what_is_refused_is_told_and_tried_again(cluster: LocalCluster) -> None:
    with Counting(cluster, refusals=3) as part:
        for _ in range(4):
            part.looks.get(timeout=5)

    assert part.trouble == ["not for you"] * 3


def test_what_has_ended_looks_no_more(cluster: LocalCluster) -> None:
    with Counting(cluster) as part:
        part.looks.get(timeout=5)

    while not part.looks.empty():
        part.looks.get()
    cluster.door().patch(node_path("node-1"), {"metadata": {"annotations": {"tests/fake_controller": "late"}}})
    with pytest.raises(queue.Empty):
        part.looks.get(timeout=QUIET)
