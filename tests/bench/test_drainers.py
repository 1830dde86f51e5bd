"""Tests that an unfinished drain is aborted, so that only its case fails and not the whole benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bench import drainers
from bench.cases import DrainCase
from bench.drainers import Drainer, FloorDrainer, KubectlDrainer
from bench.observer_process import ObserverProcess
from bench.workload import DELETE_DELAY_ANNOTATION
from localcluster.cluster import LocalCluster
from tests.workload import Workload

NODE_NAME, APP_NAME = "node-1", "kept"
IMMEDIATE_DELETION = {"gracePeriodSeconds": 0}
DrainerFactory = Callable[[LocalCluster, ObserverProcess], Drainer]


def build_kubectl_drainer(cluster: LocalCluster, observer_process: ObserverProcess) -> Drainer:
    return KubectlDrainer(cluster.kubeconfig, observer_process)


def build_floor_drainer(cluster: LocalCluster, observer_process: ObserverProcess) -> Drainer:
    return FloorDrainer(cluster.get_client(), observer_process)


@pytest.fixture(scope="module")
def observer_process(idle_cluster: LocalCluster) -> Iterator[ObserverProcess]:
    with ObserverProcess(idle_cluster.kubeconfig) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drainer_factory", "budget", "termination_delay"),
    [(build_kubectl_drainer, 0, "60s"), (build_floor_drainer, 1, "0s")],
    ids=["kubectl", "floor"],
)
def test_drain_that_does_not_finish_is_aborted(
    idle_cluster: LocalCluster,
    observer_process: ObserverProcess,
    monkeypatch: pytest.MonkeyPatch,
    drainer_factory: DrainerFactory,
    budget: int,
    termination_delay: str,
) -> None:
    """Check that a drain is aborted if the PodDisruptionBudget allows no eviction, or if the pod does not terminate.

    kubectl retries an eviction only every 5 s, so the case for kubectl uses a pod that does not terminate.
    """
    monkeypatch.setattr(drainers, "TIMEOUT_SECONDS", 1.0)
    workload = Workload(idle_cluster, idle_cluster.get_client())
    pods = workload.create_bare_pods(
        NODE_NAME, APP_NAME, labels={"app": APP_NAME}, annotations={DELETE_DELAY_ANNOTATION: termination_delay}
    )
    if budget:
        workload.create_budget(APP_NAME, {"app": APP_NAME}, 1, expected_healthy=1)
    drainer = drainer_factory(idle_cluster, observer_process)

    with pytest.raises((TimeoutError, RuntimeError), match=r"within 1 s|deadline exceeded"):
        drainer.drain(DrainCase("10 pods", pods=1, max_unavailable=budget), [NODE_NAME], pods)

    drainer.uncordon_nodes([NODE_NAME])
    workload.client.run(
        workload.client.api.request(
            "DELETE", f"/api/v1/namespaces/{workload.namespace}/pods/{APP_NAME}", body=IMMEDIATE_DELETION
        )
    )
