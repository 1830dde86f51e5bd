"""Tests of the denials and warnings for control-plane nodes whose maintenance would cost etcd its quorum (NMO-23)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kube.client.api import absent_ok
from kube.client.api_errors import Denied
from kube.client.decoding import hearing
from kube.client.sync_client import Cluster
from kube.maintenance.groups import GROUPS, KUBEVIRT
from kube.maintenance.objects import path
from kube.maintenance.quorum import CONTROL_PLANE, ETCD, GUARDS
from kube.nodes import LABEL, NODES, node_path
from kube.paths import Object
from tests.functions.admission.maintenances import create, named
from tests.proofs import proves
from tests.workload import Workload, pod_on

Plane = Callable[[int], list[str]]
REFUSED = "can not put master/control-plane node into maintenance at this moment, disrupting node"


@pytest.fixture
def plane(work: Workload, door: Cluster) -> Iterator[Plane]:
    """Yield a function that creates and labels a number of control-plane nodes.

    After the test, all maintenances are deleted and the nodes' control-plane labels are removed.
    """
    names: list[str] = []

    def label(count: int) -> list[str]:
        names.extend(work.node() for _ in range(count))
        for number, name in enumerate(names):
            door.patch(node_path(name), {"metadata": {"labels": {CONTROL_PLANE[number % 2]: ""}}})
        return names

    yield label
    for group in GROUPS.values():
        for item in door.list(group.path)["items"]:
            door.run(absent_ok(door.api.request("DELETE", f"{group.path}/{item['metadata']['name']}")))
    for name in names:
        door.patch(node_path(name), {"metadata": {"labels": dict.fromkeys(CONTROL_PLANE)}})


@pytest.fixture
def etcd(work: Workload, door: Cluster) -> Iterator[None]:
    """Create OpenShift's etcd namespace, and delete its budgets and pods after the test."""
    if door.run(absent_ok(door.api.get(f"/api/v1/namespaces/{ETCD}"))) is None:
        door.create("/api/v1/namespaces", {"metadata": {"name": ETCD}})
    work.wait_for(f"/api/v1/namespaces/{ETCD}/serviceaccounts/default", lambda account: account is not None)
    yield
    for kind in (f"/apis/policy/v1/namespaces/{ETCD}/poddisruptionbudgets", f"/api/v1/namespaces/{ETCD}/pods"):
        door.run(door.api.request("DELETE", kind, body={"gracePeriodSeconds": 0}))


def guard(door: Cluster, name: str, labels: Object) -> Object:
    """Create the etcd guard budget, as OpenShift or the replaced operator's end-to-end suite does."""
    where = f"/apis/policy/v1/namespaces/{ETCD}/poddisruptionbudgets"
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": labels}}
    return door.create(where, {"metadata": {"name": name}, "spec": spec})


@proves("NMO-23")
def test_of_three_control_plane_nodes_one_may_go_and_not_a_second(plane: Plane, door: Cluster) -> None:
    first, second, _ = plane(3)
    item = create(door, named(first))

    with pytest.raises(Denied, match=f"{REFUSED} {second} will violate etcd quorum: of 3 .* end the maintenance of"):
        create(door, named(second, KUBEVIRT))

    door.delete(path(item), uid=item["metadata"]["uid"])
    create(door, named(second, KUBEVIRT))


@proves("NMO-23", "NMO-27a")
def test_the_node_of_one_that_has_given_up_counts_until_it_is_given_back(plane: Plane, door: Cluster) -> None:
    first, second, _ = plane(3)
    item = create(door, named(first))
    door.patch(f"{path(item)}/status", {"status": {"errorOnLeaseCount": 4}})
    door.patch(node_path(first), {"metadata": {"labels": {LABEL: item["metadata"]["uid"]}}})

    with pytest.raises(Denied, match=REFUSED):
        create(door, named(second))

    door.patch(node_path(first), {"metadata": {"labels": {LABEL: None}}})
    create(door, named(second))


@proves("NMO-23")
@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_without_pods_leaves_it_to_counting(plane: Plane, door: Cluster, etcd: None, name: str) -> None:
    """Check that control-plane nodes are counted if the guard budget selects no pods.

    The replaced operator's end-to-end suite creates such a budget, with `maxUnavailable: 0`.
    """
    guard(door, name, {"app": "fake-etcd-quorum-guard"})
    first, second, _ = plane(3)

    create(door, named(first))
    with pytest.raises(Denied, match=REFUSED):
        create(door, named(second))


@proves("NMO-23")
@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_with_ready_pods_decides(plane: Plane, door: Cluster, etcd: None, work: Workload, name: str) -> None:
    first, second, _ = plane(3)
    work.put(ETCD, [pod_on(first, "guard-1", labels={"app": "guard"})])
    guard(door, name, {"app": "guard"})

    with pytest.raises(Denied, match=f"budget {ETCD}/{name} allows no disruption"):
        create(door, named(first))
    create(door, named(second))  # this node has no guard pod, so it counts as down already


@proves("NMO-23")
def test_a_node_that_is_down_may_always_be_maintained(plane: Plane, door: Cluster) -> None:
    down = {"metadata": {"name": "control-plane-down", "labels": {CONTROL_PLANE[0]: ""}}}
    door.create(NODES, down)  # no simulated kubelet serves this node, so it never becomes Ready
    up, _ = plane(2)
    try:
        create(door, named("control-plane-down"))
        with pytest.raises(Denied, match="repair control-plane-down first"):
            create(door, named(up))
    finally:
        door.run(door.api.request("DELETE", node_path("control-plane-down")))


@proves("NMO-23")
def test_a_sole_control_plane_node_is_warned_of(plane: Plane, door: Cluster) -> None:
    (node,) = plane(1)

    with hearing() as warnings:
        create(door, named(node))

    assert warnings[0].startswith(f"node {node} is the only control-plane node")
