"""Background writes by another client during a measurement."""

from __future__ import annotations

import pytest

from bench.background_writer import HEARTBEATS, LEASES_PATH, MAPS, MAPS_PATH, writing
from bench.workload import until
from kube.nodes import NODES
from localcluster.cluster import LocalCluster

RATE = 20


def test_configmaps_are_written_while_the_block_runs_and_are_gone_after_it(quiet: LocalCluster) -> None:
    """Check that all ConfigMaps are written while the block runs, and are deleted after it."""
    with writing(quiet.kubeconfig, RATE):
        maps = until(quiet.door(), MAPS_PATH, lambda found: len(written(found)) == MAPS, 30)
        assert len(written(maps)) == MAPS

    assert not any(name.startswith("foreign") for name in names(quiet))


def written(found: dict[str, dict[str, object]]) -> list[str]:
    return [name for name, item in found.items() if name.startswith("foreign") and item.get("data")]


def names(cluster: LocalCluster) -> list[str]:
    return [item["metadata"]["name"] for item in cluster.door().list(MAPS_PATH)["items"]]


def test_heartbeats_are_the_leases_of_all_nodes(quiet: LocalCluster) -> None:
    """Check that the Leases of all nodes are renewed as by kubelets while the block runs, and are deleted after it."""
    nodes = {item["metadata"]["name"] for item in quiet.door().list(NODES)["items"]}
    with writing(quiet.kubeconfig, RATE, HEARTBEATS):
        leases = until(quiet.door(), LEASES_PATH, lambda found: nodes <= set(found), 30)
        first = {name: leases[name]["spec"]["renewTime"] for name in nodes}
        until(quiet.door(), LEASES_PATH, lambda found: all(renewed(found, name) > first[name] for name in nodes), 30)

    assert nodes
    assert not nodes & {item["metadata"]["name"] for item in quiet.door().list(LEASES_PATH)["items"]}


def renewed(found: dict[str, dict[str, object]], name: str) -> str:
    return str(found[name]["spec"]["renewTime"])  # type: ignore[index]


def test_without_a_rate_nobody_writes(quiet: LocalCluster) -> None:
    with writing(quiet.kubeconfig, 0):
        assert not any(name.startswith("foreign") for name in names(quiet))


def test_a_rate_that_is_not_kept_is_an_error(quiet: LocalCluster) -> None:
    """Check that a rate that was not reached is an error, because the measurement does not belong to the case."""
    with pytest.raises(RuntimeError, match="1000000 a second were wanted"), writing(quiet.kubeconfig, 1_000_000):
        until(quiet.door(), MAPS_PATH, lambda found: len(written(found)) > 0, 30)
