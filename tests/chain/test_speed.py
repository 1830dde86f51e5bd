"""How fast it is, measured in the same run as what it is compared with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from kube.paths import Object
from tests.chain.scene import Scene, finished
from tests.machine import is_below

pytestmark = pytest.mark.slow

DRAINS, ROUNDS = 7, 3
"""So few notice what has become slow; `make bench` measures how fast it is."""


@pytest.fixture
def furnished(scene: Scene) -> Iterator[dict[str, list[Object]]]:
    """Give nodes with three pods each; their maintenances end after the test, beside others."""
    nodes = {scene.node(): scene.namespace() for _ in range(DRAINS)}
    yield {node: scene.pods(node, 3, namespace=namespace, delete="100ms") for node, namespace in nodes.items()}
    scene.give_back(nodes)


def test_the_last_pods_end_is_told_at_once(scene: Scene, furnished: dict[str, list[Object]]) -> None:
    """NMO-10: the median of the times from the last pod's end to `phase: Succeeded` is under 200 ms."""
    lags = [_lag(scene, node, pods) for node, pods in furnished.items()]

    print(f"last pod gone to Succeeded over {DRAINS} drains: median {statistics.median(lags) * 1000:.0f} ms")
    assert is_below(statistics.median(lags), 0.2)


def test_ten_pods_are_drained_faster_than_by_kubectl(scene: Scene) -> None:
    """KNM-6, OSV-1: 10 pods without budget: from creation to Succeeded in under 0.6 of what `kubectl drain` takes."""
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
    """Seconds from the end of the node's last pod to Succeeded, both as a watcher sees them."""
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
