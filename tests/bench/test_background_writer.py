"""Background writes by another client during a measurement."""

from __future__ import annotations

import pytest

from bench.background_writer import CONFIGMAP_COUNT, CONFIGMAPS_PATH, HEARTBEATS, LEASES_PATH, run_writer
from bench.workload import wait_until
from kube.nodes import NODES_PATH
from localcluster.cluster import LocalCluster

WRITES_PER_SECOND = 20


def test_configmaps_are_written_and_deleted_after_the_block(idle_cluster: LocalCluster) -> None:
    """Check that all ConfigMaps are written while the block runs, and are deleted after it."""
    with run_writer(idle_cluster.kubeconfig, WRITES_PER_SECOND):
        maps = wait_until(
            idle_cluster.get_client(),
            CONFIGMAPS_PATH,
            lambda objects: len(list_written_names(objects)) == CONFIGMAP_COUNT,
            30,
        )
        assert len(list_written_names(maps)) == CONFIGMAP_COUNT

    assert not any(name.startswith("background-") for name in list_configmap_names(idle_cluster))


def list_written_names(objects: dict[str, dict[str, object]]) -> list[str]:
    return [name for name, item in objects.items() if name.startswith("background-") and item.get("data")]


def list_configmap_names(cluster: LocalCluster) -> list[str]:
    return [item["metadata"]["name"] for item in cluster.get_client().list(CONFIGMAPS_PATH)["items"]]


def test_heartbeats_renew_the_leases_of_all_nodes(idle_cluster: LocalCluster) -> None:
    """Check that the Leases of all nodes are renewed as by kubelets while the block runs, and are deleted after it."""
    nodes = {item["metadata"]["name"] for item in idle_cluster.get_client().list(NODES_PATH)["items"]}
    with run_writer(idle_cluster.kubeconfig, WRITES_PER_SECOND, HEARTBEATS):
        leases = wait_until(idle_cluster.get_client(), LEASES_PATH, lambda objects: nodes <= set(objects), 30)
        first = {name: leases[name]["spec"]["renewTime"] for name in nodes}
        wait_until(
            idle_cluster.get_client(),
            LEASES_PATH,
            lambda objects: all(get_renew_time(objects, name) > first[name] for name in nodes),
            30,
        )

    assert nodes
    assert not nodes & {item["metadata"]["name"] for item in idle_cluster.get_client().list(LEASES_PATH)["items"]}


def get_renew_time(objects: dict[str, dict[str, object]], name: str) -> str:
    return str(objects[name]["spec"]["renewTime"])  # type: ignore[index]


def test_rate_of_zero_writes_nothing(idle_cluster: LocalCluster) -> None:
    with run_writer(idle_cluster.kubeconfig, 0):
        assert not any(name.startswith("background-") for name in list_configmap_names(idle_cluster))


def test_unreached_rate_is_an_error(idle_cluster: LocalCluster) -> None:
    """Check that a rate that was not reached is an error, because the measurement does not belong to the case."""
    with (
        pytest.raises(RuntimeError, match="instead of 1000000 per second"),
        run_writer(idle_cluster.kubeconfig, 1_000_000),
    ):
        wait_until(idle_cluster.get_client(), CONFIGMAPS_PATH, lambda objects: len(list_written_names(objects)) > 0, 30)
