"""Tests with invalid NodeMaintenances, unknown and deleted nodes, and pods that cannot leave."""

from __future__ import annotations

import json

import pytest

from kube.maintenance.groups import MEDIK8S
from kube.paths import Object
from localcluster.errors import LocalClusterError
from tests.chain.environment import Scene
from tests.proofs import proves

pytestmark = pytest.mark.abreast


@pytest.mark.slow
@proves("NMO-19")
def test_an_unknown_node_is_said_and_found_when_it_comes(scene: Scene) -> None:
    """NMO-19: a maintenance of an unknown node fails with the reason; a tick begins it once the node exists."""
    path = scene.maintain("chain-not-yet")
    status = scene.reaches(path, lambda item: bool((item.get("status") or {}).get("phase")))["status"]
    assert (status["phase"], status["lastError"]) == ("Failed", 'nodes "chain-not-yet" not found')

    scene.node("chain-not-yet")
    done = scene.by_ticks(lambda: scene.reaches(path, seconds=1))["status"]

    assert "lastError" not in done
    scene.delete(path)
    scene.gone(path)


@proves("NMO-18")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"spec": {"nodeName": ""}}, "spec.nodeName", id="empty"),
        pytest.param({"spec": {"reason": "x"}}, "spec.nodeName: Required value", id="missing"),
        pytest.param({}, "spec: Required value", id="no spec"),
        pytest.param({"spec": {"nodeName": 7}}, "spec.nodeName", id="number"),
    ],
)
def test_a_node_name_that_is_none_is_refused_at_the_door(scene: Scene, spec: Object, said: str) -> None:
    """NMO-2, NMO-18: the CRD's schema rejects an invalid node name and names the field, without the webhook."""
    head = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "bad"}}

    with pytest.raises(LocalClusterError) as refused:
        scene.cluster.kubectl("create", "-f", "-", input=json.dumps({**head, **spec}))

    assert said in str(refused.value)


@proves("NMO-18", "NMO-21")
def test_the_node_name_cannot_be_changed(scene: Scene) -> None:
    """NMO-21: the API server rejects a change of `spec.nodeName`, while `spec.reason` may change at any time."""
    node = scene.node()
    path = scene.maintain(node)
    scene.reaches(path)

    with pytest.raises(LocalClusterError) as refused:
        scene.cluster.kubectl("patch", "nm", path.rsplit("/", 1)[1], "--type=merge", '-p={"spec":{"nodeName":"x"}}')
    scene.cluster.kubectl("patch", "nm", path.rsplit("/", 1)[1], "--type=merge", '-p={"spec":{"reason":"other"}}')

    assert "updating spec.NodeName isn't allowed" in str(refused.value)
    scene.delete(path)
    scene.gone(path)


@proves("NMO-20")
def test_a_deleted_node_ends_its_maintenance(scene: Scene) -> None:
    """NMO-20, NMO-14: deleting a node also deletes its NodeMaintenance."""
    node = scene.node()
    path = scene.maintain(node)
    scene.reaches(path)

    scene.cluster.kubectl("delete", "node", node)

    assert scene.gone(path, seconds=10) < 10


def test_a_pod_that_a_finalizer_holds_is_said(scene: Scene) -> None:
    """NMO-12, OSV-15: a terminating pod is reported as blocked until its finalizer is removed."""
    node = scene.node()
    (pod,) = scene.pods(node, 1, finalizers=["example.com/hold"], grace=1)
    path = scene.maintain(node)

    status = scene.by_ticks(lambda: scene.reaches(path, _is_blocked, seconds=1))["status"]
    assert status["phase"] == "Running"
    assert [(item["reason"], item["name"]) for item in status["blockedPods"]] == [
        ("Finalizers", pod["metadata"]["name"])
    ]
    assert "example.com/hold" in status["blockedPods"][0]["message"]

    where = ("-n", pod["metadata"]["namespace"], "pod", pod["metadata"]["name"])
    scene.cluster.kubectl("patch", *where, "--type=merge", '-p={"metadata":{"finalizers":null}}')
    scene.reaches(path)
    scene.delete(path)
    scene.gone(path)


def test_a_namespace_that_is_being_deleted_does_not_stop_the_drain(scene: Scene) -> None:
    """NMO-6: pods of a terminating namespace, where evictions are forbidden, do not stop the drain of other pods."""
    node, leaving = scene.node(), scene.namespace()
    scene.pods(node, 5, namespace=leaving, delete="1s")
    scene.pods(node, 3)
    scene.cluster.kubectl("delete", "namespace", leaving, "--wait=false")

    path = scene.maintain(node)
    status = scene.reaches(path)["status"]

    assert "lastError" not in status
    assert scene.pods_on(node) == []
    scene.delete(path)
    scene.gone(path)


def _is_blocked(item: Object) -> bool:
    return bool((item.get("status") or {}).get("blockedPods"))
