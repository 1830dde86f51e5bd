"""A drain that does not finish is an error of its case, not of the whole benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bench import drainers
from bench.cases import Case
from bench.workload import DELAY
from bench.observer_process import Watching
from bench.drainers import Floor, Kubectl, Way
from localcluster.cluster import LocalCluster
from tests.workload import Workload

NODE, APP = "node-1", "kept"
AT_ONCE = {"gracePeriodSeconds": 0}
Made = Callable[[LocalCluster, Watching], Way]


def kubectl(cluster: LocalCluster, watching: Watching) -> Way:
    return Kubectl(cluster.kubeconfig, watching)


def floor(cluster: LocalCluster, watching: Watching) -> Way:
    return Floor(cluster.door(), watching)


@pytest.fixture(scope="module")
def watching(quiet: LocalCluster) -> Iterator[Watching]:
    with Watching(quiet.kubeconfig) as watching:
        yield watching


@pytest.mark.parametrize(("way", "budget", "ending"), [(kubectl, 0, "60s"), (floor, 1, "0s")], ids=["kubectl", "floor"])
def test_a_drain_that_lasts_too_long_is_given_up(
    quiet: LocalCluster, watching: Watching, monkeypatch: pytest.MonkeyPatch, way: Made, budget: int, ending: str
) -> None:
    """Check that a drain is aborted whose budget allows no eviction, or whose pod does not terminate.

    kubectl retries an eviction only every 5 s, so its case has a pod that does not terminate.
    """
    monkeypatch.setattr(drainers, "PATIENCE", 1.0)
    work = Workload(quiet, quiet.door())
    pods = work.pods(NODE, APP, labels={"app": APP}, annotations={DELAY: ending})
    if budget:
        work.budget(APP, {"app": APP}, 1, counted=1)
    draining = way(quiet, watching)

    with pytest.raises((TimeoutError, RuntimeError), match=r"within 1 s|deadline exceeded"):
        draining.drain(Case("10 pods", pods=1, budget=budget), [NODE], pods)

    draining.give_back([NODE])
    work.admin.run(work.admin.api.request("DELETE", f"/api/v1/namespaces/{work.namespace}/pods/{APP}", body=AT_ONCE))
