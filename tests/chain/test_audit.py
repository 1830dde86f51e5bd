"""Tests of the product's requests, as the API server's audit log shows them."""

from __future__ import annotations

import pytest

from kube.nodes import node_path
from kube.paths import Object
from tests.chain.environment import Scene
from tests.chain.test_not_ready import WRITTEN
from tests.proofs import proves
from tests.workload import OURS, audit

# This module runs first in its group, so that the fixture's maintenances are idle as long as possible.
pytestmark = pytest.mark.usefixtures("resting")


@proves("NMO-5", "C32")
def test_nothing_is_evicted_before_cordon_and_taint(scene: Scene) -> None:
    """NMO-5, C32: the last write to the node precedes the first eviction."""
    node = scene.node()
    pods = scene.pods(node, 5)
    path = scene.maintain(node)
    scene.reaches(path)

    writes = [entry for entry in scene.our_writes() if entry["objectRef"].get("name") == node]
    granted = [entry for entry in writes if entry["responseStatus"]["code"] < 300]  # conflicting writes are repeated
    prepared = [entry["stageTimestamp"] for entry in granted if entry["objectRef"]["resource"] == "nodes"]
    evicted = [entry["requestReceivedTimestamp"] for entry in scene.evictions(pods)]

    assert len(prepared) == 2
    assert len(evicted) == 5
    assert max(prepared) < min(evicted)
    scene.delete(path)
    scene.gone(path)


@proves("NMO-6")
def test_pods_leave_by_eviction_with_their_uid_and_no_other_way(scene: Scene) -> None:
    """NMO-6, 9: every eviction has the pod's uid as a precondition, and the product never deletes a pod itself."""
    node = scene.node()
    pods = scene.pods(node, 5)
    path = scene.maintain(node)
    scene.reaches(path)

    asked = {entry["objectRef"]["name"]: entry["requestObject"]["deleteOptions"] for entry in scene.evictions(pods)}

    assert {name: options["preconditions"]["uid"] for name, options in asked.items()} == {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods
    }
    assert not [entry for entry in scene.our_writes() if _deletes_pods(entry)]
    scene.delete(path)
    scene.gone(path)


@proves("C10")
def test_a_maintenance_powers_no_node_off(scene: Scene) -> None:
    """C10: the product writes no more than a drain needs, and the Node stays the same object and Ready.

    Of the Node, the product writes `unschedulable`, the taints and the labels.
    """
    node = scene.node()
    scene.pods(node, 2)
    before, seen = scene.admin.get(node_path(node)), audit(scene.cluster)
    path = scene.maintain(node)
    scene.reaches(path)
    amid = scene.admin.get(node_path(node))
    scene.delete(path)
    scene.gone(path)
    after = scene.admin.get(node_path(node))

    assert before["metadata"]["uid"] == amid["metadata"]["uid"] == after["metadata"]["uid"]
    assert [is_node_ready(item) for item in (amid, after)] == [True, True]
    writes = seen.writes_by()
    assert {entry["objectRef"]["resource"] for entry in writes} <= WRITTEN
    of_nodes = [entry for entry in writes if entry["objectRef"]["resource"] == "nodes"]
    assert {(entry["verb"], entry["objectRef"].get("subresource", "")) for entry in of_nodes} == {("patch", "")}
    changes = [change for entry in of_nodes for change in entry["requestObject"] if change["op"] != "test"]
    assert {change["path"].split("/")[2] for change in changes} == {"unschedulable", "taints", "labels"}


def is_node_ready(node: Object) -> bool:
    """Return whether a node's condition Ready is True."""
    return any((each["type"], each["status"]) == ("Ready", "True") for each in node["status"]["conditions"])


def _deletes_pods(entry: Object) -> bool:
    reference = entry["objectRef"]
    return (
        entry["user"]["username"].startswith(OURS)
        and entry["verb"] in ("delete", "deletecollection")
        and reference["resource"] == "pods"
    )
