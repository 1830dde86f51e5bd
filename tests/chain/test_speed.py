"""Tests of latency and of the duration of a drain, relative to `kubectl drain` in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from kube.paths import Object
from tests.chain.environment import ChainEnvironment, has_succeeded
from tests.machine_speed import is_below_scaled_limit

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DRAIN_COUNT, ROUND_COUNT = 7, 3
"""Enough drains to detect a regression; `make bench` measures precisely."""


@pytest.fixture
def pods_by_node(environment: ChainEnvironment) -> Iterator[dict[str, list[Object]]]:
    """Yield nodes with three pods each; delete their maintenances afterwards."""
    nodes = {environment.create_node(): environment.create_namespace() for _ in range(DRAIN_COUNT)}
    yield {
        node: environment.create_pods(node, 3, namespace=namespace, delete="100ms") for node, namespace in nodes.items()
    }
    environment.delete_maintenances_of(nodes)


def test_succeeded_follows_last_pod_deletion_within_limit(
    environment: ChainEnvironment, pods_by_node: dict[str, list[Object]]
) -> None:
    """NMO-10: `phase: Succeeded` follows the deletion of the last pod within a median of 200 ms."""
    lag_seconds = [_measure_lag(environment, node, pods) for node, pods in pods_by_node.items()]

    print(
        f"last pod gone to Succeeded over {DRAIN_COUNT} drains: median {statistics.median(lag_seconds) * 1000:.0f} ms"
    )
    assert is_below_scaled_limit(statistics.median(lag_seconds), 0.2)


def test_drain_of_ten_pods_is_faster_than_kubectl(environment: ChainEnvironment) -> None:
    """KNM-6, OSV-1: draining ten pods without a budget takes under 0.6 of the time that `kubectl drain` takes."""
    maintained_node, kubectl_node = environment.create_node(), environment.create_node()
    ratios = []
    for _ in range(ROUND_COUNT):
        environment.create_pods(maintained_node, 10)
        environment.create_pods(kubectl_node, 10)
        started = time.monotonic()
        path = environment.create_maintenance(maintained_node)
        environment.await_state(path)
        own_seconds = time.monotonic() - started
        started = time.monotonic()
        environment.cluster.kubectl("drain", kubectl_node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
        ratios.append(own_seconds / (time.monotonic() - started))
        environment.cluster.kubectl("uncordon", kubectl_node)
        environment.request_deletion(path)
        environment.await_deletion(path)

    print(f"10 pods, ours / kubectl drain: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    assert statistics.median(ratios) < 0.6


def _measure_lag(environment: ChainEnvironment, node: str, pods: list[Object]) -> float:
    """Return the seconds between the watch events for the last pod's deletion and for Succeeded."""
    namespace = pods[0]["metadata"]["namespace"]
    ended: list[float] = []

    def watch() -> None:
        for change in environment.cluster.watch(f"/api/v1/namespaces/{namespace}/pods", timeout=30):
            if change.change_type == "DELETED":
                ended.append(time.monotonic())
            if len(ended) == len(pods):
                return

    with environment.run_in_thread(watch):
        path = environment.create_maintenance(node)
        environment.await_state(path, has_succeeded)
        succeeded = time.monotonic()
    return succeeded - ended[-1]
