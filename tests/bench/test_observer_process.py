"""The observer process and the times that it reports."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bench.observer_process import Watching
from kube.maintenance.groups import MEDIK8S
from localcluster.cluster import LocalCluster
from tests.workload import Workload

NODE = "node-1"


@pytest.fixture
def watching(quiet: LocalCluster) -> Iterator[Watching]:
    with Watching(quiet.kubeconfig) as watching:
        yield watching


def test_a_node_is_seen_out_of_service_and_back(quiet: LocalCluster, watching: Watching) -> None:
    """Check that cordoning and uncordoning are observed, and that the latter must be after the given time."""
    door, started = quiet.door(), time.monotonic()

    door.patch(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": True}})
    out = watching.first("node", NODE, "out")
    door.patch(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": None}})

    assert started < out < watching.in_service([NODE], out)


def test_the_end_of_the_last_pod_is_seen(quiet: LocalCluster, watching: Watching) -> None:
    work = Workload(quiet, quiet.door())
    pods = work.pods(NODE, "first", "last")
    assert len(pods) == 2

    work.delete(f"/api/v1/namespaces/{work.namespace}/pods/first")
    first = watching.first("pod gone", "first")
    work.delete(f"/api/v1/namespaces/{work.namespace}/pods/last")

    assert first < watching.last_gone({"first", "last"}) == watching.first("pod gone", "last")
    assert watching.last("pod gone", ["last", "first"]) == watching.first("pod gone", "last")


def test_a_maintenance_made_anew_under_its_name_is_seen_anew(quiet: LocalCluster, watching: Watching) -> None:
    """Check that a recreated maintenance of the same name is observed again after a reset."""
    work = Workload(quiet, quiet.door())
    for _ in range(2):
        watching.forget()
        name = work.maintenance(NODE, name="again")["metadata"]["name"]
        assert watching.first("phase", name, "") > 0
        work.delete(f"{MEDIK8S.path}/{name}")
        assert watching.first("maintenance gone", name) > 0


def test_nobody_waits_for_an_observer_that_has_ended(quiet: LocalCluster) -> None:
    with Watching(quiet.kubeconfig) as watching:
        pass

    with pytest.raises(RuntimeError, match="the observer has ended, and had not seen: pod gone nobody"):
        watching.first("pod gone", "nobody")
