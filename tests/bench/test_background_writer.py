"""Tests for the background writer, which simulates the writes of other clients during a measurement."""

from __future__ import annotations

import pytest

from bench.background_writer import CONFIGMAP_COUNT, CONFIGMAPS_PATH, HEARTBEATS, LEASES_PATH, run_background_writer
from bench.workload import wait_until
from kube.nodes import NODES_PATH
from localcluster.cluster import LocalCluster

WRITES_PER_SECOND = 20
"""Number of writes per second; the writer fails if other load on the machine keeps it below this rate."""


@pytest.mark.alone
def test_writer_writes_configmaps_and_deletes_them_on_exit(idle_cluster: LocalCluster) -> None:
    """Check that the writer writes all ConfigMaps while its `with` block runs, and deletes them when the block ends."""
    with run_background_writer(idle_cluster.kubeconfig, WRITES_PER_SECOND):
        configmaps = wait_until(
            idle_cluster.get_client(),
            CONFIGMAPS_PATH,
            lambda objects: len(list_written_configmap_names(objects)) == CONFIGMAP_COUNT,
            30,
        )
        assert len(list_written_configmap_names(configmaps)) == CONFIGMAP_COUNT

    assert not any(name.startswith("background-") for name in list_configmap_names(idle_cluster))


def list_written_configmap_names(objects: dict[str, dict[str, object]]) -> list[str]:
    return [name for name, configmap in objects.items() if name.startswith("background-") and configmap.get("data")]


def list_configmap_names(cluster: LocalCluster) -> list[str]:
    return [configmap["metadata"]["name"] for configmap in cluster.get_client().list(CONFIGMAPS_PATH)["items"]]


@pytest.mark.alone
def test_writer_renews_leases_of_all_nodes_and_deletes_them_on_exit(idle_cluster: LocalCluster) -> None:
    """Check that the writer renews the Leases of all nodes, as kubelets do, and deletes them when it stops."""
    nodes = {node["metadata"]["name"] for node in idle_cluster.get_client().list(NODES_PATH)["items"]}
    with run_background_writer(idle_cluster.kubeconfig, WRITES_PER_SECOND, HEARTBEATS):
        leases = wait_until(idle_cluster.get_client(), LEASES_PATH, lambda objects: nodes <= set(objects), 30)
        first_renew_times = {name: leases[name]["spec"]["renewTime"] for name in nodes}
        wait_until(
            idle_cluster.get_client(),
            LEASES_PATH,
            lambda objects: all(get_renew_time(objects, name) > first_renew_times[name] for name in nodes),
            30,
        )

    assert nodes
    assert not nodes & {lease["metadata"]["name"] for lease in idle_cluster.get_client().list(LEASES_PATH)["items"]}


def get_renew_time(objects: dict[str, dict[str, object]], name: str) -> str:
    return str(objects[name]["spec"]["renewTime"])  # type: ignore[index]


@pytest.mark.slow
def test_writer_with_rate_zero_writes_nothing(idle_cluster: LocalCluster) -> None:
    with run_background_writer(idle_cluster.kubeconfig, 0):
        assert not any(name.startswith("background-") for name in list_configmap_names(idle_cluster))


@pytest.mark.slow
def test_writer_fails_if_it_does_not_reach_its_rate(idle_cluster: LocalCluster) -> None:
    """Check that the writer fails if it does not reach its rate, because the measurement would be wrong."""
    with (
        pytest.raises(RuntimeError, match="instead of 1000000 per second"),
        run_background_writer(idle_cluster.kubeconfig, 1_000_000),
    ):
        wait_until(
            idle_cluster.get_client(),
            CONFIGMAPS_PATH,
            lambda objects: len(list_written_configmap_names(objects)) > 0,
            30,
        )
