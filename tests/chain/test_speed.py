"""Tests of latency and of the duration of a drain, relative to `kubectl drain` in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from kube.paths import Object
from tests.chain.environment import Scene, finished
from tests.machine_speed import is_below

pytestmark = pytest.mark.slow

DRAINS, ROUNDS = 7, 3
"""Enough drains to detect a regression; `make bench` measures precisely."""


@pytest.fixture
def furnished(scene: Scene) -> Iterator[dict[str, list[Object]]]:
    """Yield nodes with three pods each; delete their maintenances afterwards."""
    nodes = {scene.node(): scene.namespace() for _ in range(DRAINS)}
    yield {node: scene.pods(node, 3, namespace=namespace, delete="100ms") for node, namespace in nodes.items()}
    scene.give_back(nodes)


def test_the_last_pods_end_is_told_at_once(scene: Scene, furnished: dict[str, list[Object]]) -> None:
    """NMO-10: `phase: Succeeded` follows the deletion of the last pod within a median of 200 ms."""
    lags = [_lag(scene, node, pods) for node, pods in furnished.items()]

    print(f"last pod gone to Succeeded over {DRAINS} drains: median {statistics.median(lags) * 1000:.0f} ms")
    assert is_below(statistics.median(lags), 0.2)


def test_ten_pods_are_drained_faster_than_by_kubectl(scene: Scene) -> None:
    """KNM-6, OSV-1: draining ten pods without a budget takes under 0.6 of the time that `kubectl drain` takes."""
    ours_node, theirs_node = scene.node(), scene.node()
    ratios = []
    for _ in range(ROUNDS):
        scene.pods(ours_node, 10)
        scene.pods(theirs_node, 10)
        started = time.monotonic()
        path = scene.maintain(ours_node)
        scene.reaches(path)
        ours = time.monotonic() - started
        started = time.monotonic()
        scene.cluster.kubectl("drain", theirs_node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
        ratios.append(ours / (time.monotonic() - started))
        scene.cluster.kubectl("uncordon", theirs_node)
        scene.delete(path)
        scene.gone(path)

    print(f"10 pods, ours / kubectl drain: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    assert statistics.median(ratios) < 0.6


def _lag(scene: Scene, node: str, pods: list[Object]) -> float:
    """Return the seconds between the watch events for the last pod's deletion and for Succeeded."""
    namespace = pods[0]["metadata"]["namespace"]
    ended: list[float] = []

    def watch() -> None:
        for change in scene.cluster.watch(f"/api/v1/namespaces/{namespace}/pods", seconds=30):
            if change.kind == "DELETED":
                ended.append(time.monotonic())
            if len(ended) == len(pods):
                return

    with scene.aside(watch):
        path = scene.maintain(node)
        scene.reaches(path, finished)
        succeeded = time.monotonic()
    return succeeded - ended[-1]
