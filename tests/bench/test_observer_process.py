"""Tests for the observer process and the times that it reports."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bench.observer_process import ObserverProcess
from kube.maintenance.groups import MEDIK8S
from localcluster.cluster import LocalCluster
from tests.workload import Workload

NODE_NAME = "node-1"


@pytest.fixture
def observer_process(idle_cluster: LocalCluster) -> Iterator[ObserverProcess]:
    with ObserverProcess(idle_cluster.kubeconfig) as process:
        yield process


@pytest.mark.slow
def test_cordon_and_uncordon_are_observed(idle_cluster: LocalCluster, observer_process: ObserverProcess) -> None:
    """Check that the observer reports the times of a cordon and of the next uncordon after a given time."""
    client, started = idle_cluster.get_client(), time.monotonic()

    client.patch(f"/api/v1/nodes/{NODE_NAME}", {"spec": {"unschedulable": True}})
    cordoned_at = observer_process.wait_for_change("node", NODE_NAME, "out")
    client.patch(f"/api/v1/nodes/{NODE_NAME}", {"spec": {"unschedulable": None}})

    assert started < cordoned_at < observer_process.wait_until_schedulable([NODE_NAME], cordoned_at)


@pytest.mark.slow
def test_deletion_of_last_pod_is_observed(idle_cluster: LocalCluster, observer_process: ObserverProcess) -> None:
    workload = Workload(idle_cluster, idle_cluster.get_client())
    pods = workload.create_bare_pods(NODE_NAME, "first", "last")
    assert len(pods) == 2

    workload.delete(f"/api/v1/namespaces/{workload.namespace}/pods/first")
    first_gone_at = observer_process.wait_for_change("pod gone", "first")
    workload.delete(f"/api/v1/namespaces/{workload.namespace}/pods/last")

    assert (
        first_gone_at
        < observer_process.wait_until_pods_gone({"first", "last"})
        == observer_process.wait_for_change("pod gone", "last")
    )
    assert observer_process.wait_for_changes("pod gone", ["last", "first"]) == observer_process.wait_for_change(
        "pod gone", "last"
    )


@pytest.mark.slow
def test_recreated_maintenance_is_observed_after_reset(
    idle_cluster: LocalCluster, observer_process: ObserverProcess
) -> None:
    """Check that a maintenance recreated with the same name is observed again after a reset."""
    workload = Workload(idle_cluster, idle_cluster.get_client())
    for _ in range(2):
        observer_process.reset()
        name = workload.create_maintenance(NODE_NAME, name="again")["metadata"]["name"]
        assert observer_process.wait_for_change("phase", name, "") > 0
        workload.delete(f"{MEDIK8S.path}/{name}")
        assert observer_process.wait_for_change("maintenance gone", name) > 0


@pytest.mark.slow
def test_waiting_fails_if_observer_has_exited(idle_cluster: LocalCluster) -> None:
    with ObserverProcess(idle_cluster.kubeconfig) as process:
        pass

    with pytest.raises(RuntimeError, match="observer exited before it observed: pod gone missing"):
        process.wait_for_change("pod gone", "missing")
