"""Tests for the duration of a drain, and for the delay until a finished drain is reported as Succeeded."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from kube.paths import Object
from tests.chain.environment import EventChainEnvironment, has_succeeded
from tests.machine_speed import is_below_scaled_limit

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DRAIN_COUNT, ROUND_COUNT = 7, 3
"""Number of drains per test; few suffice to detect a regression, and `make bench` measures more precisely."""


@pytest.fixture
def pods_by_node(environment: EventChainEnvironment) -> Iterator[dict[str, list[Object]]]:
    """Yield a map from node name to the node's three pods; delete the nodes' maintenances afterwards."""
    namespace_by_node = {environment.create_node(): environment.create_namespace() for _ in range(DRAIN_COUNT)}
    yield {
        node: environment.create_pods(node, 3, namespace=namespace, delete="100ms")
        for node, namespace in namespace_by_node.items()
    }
    environment.delete_maintenances_of(namespace_by_node)


def test_maintenance_succeeds_soon_after_last_pod_is_deleted(
    environment: EventChainEnvironment, pods_by_node: dict[str, list[Object]]
) -> None:
    """NMO-10: the phase becomes Succeeded within 200 ms (median) after the last pod is deleted."""
    lag_seconds = [_measure_success_lag(environment, node, pods) for node, pods in pods_by_node.items()]

    print(f"last pod deleted to Succeeded, {DRAIN_COUNT} drains: median {statistics.median(lag_seconds) * 1000:.0f} ms")
    assert is_below_scaled_limit(statistics.median(lag_seconds), 0.2)


def test_drain_of_ten_pods_is_faster_than_kubectl(environment: EventChainEnvironment) -> None:
    """KNM-6, OSV-1: draining ten pods without a PDB takes less than 0.6 times as long as `kubectl drain`."""
    maintained_node, kubectl_node = environment.create_node(), environment.create_node()
    ratios = []
    for _ in range(ROUND_COUNT):
        environment.create_pods(maintained_node, 10)
        environment.create_pods(kubectl_node, 10)
        started = time.monotonic()
        path = environment.create_maintenance(maintained_node)
        environment.wait_for_state(path)
        maintenance_seconds = time.monotonic() - started
        started = time.monotonic()
        environment.cluster.kubectl("drain", kubectl_node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
        ratios.append(maintenance_seconds / (time.monotonic() - started))
        environment.cluster.kubectl("uncordon", kubectl_node)
        environment.request_deletion(path)
        environment.wait_for_deletion(path)

    print(f"duration for 10 pods relative to kubectl drain: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    assert statistics.median(ratios) < 0.6


def _measure_success_lag(environment: EventChainEnvironment, node: str, pods: list[Object]) -> float:
    """Drain the node, and return the seconds between the deletion of the last pod and the phase Succeeded."""
    namespace = pods[0]["metadata"]["namespace"]
    deletion_times: list[float] = []

    def watch_pods() -> None:
        for change in environment.cluster.watch(f"/api/v1/namespaces/{namespace}/pods", timeout=30):
            if change.change_type == "DELETED":
                deletion_times.append(time.monotonic())
            if len(deletion_times) == len(pods):
                return

    with environment.run_in_thread(watch_pods):
        path = environment.create_maintenance(node)
        environment.wait_for_state(path, has_succeeded)
        succeeded_at = time.monotonic()
    return succeeded_at - deletion_times[-1]
