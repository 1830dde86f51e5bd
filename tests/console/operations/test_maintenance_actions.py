"""Tests of which maintenances the console creates and ends, on a real API server."""

from __future__ import annotations

import pytest

from console.operations.errors import Refusal
from console.operations.maintenance_actions import create, end, foreseen
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.lookup import maintenances
from localcluster.cluster import LocalCluster


def test_no_name_ends_no_maintenance(served: LocalCluster, node: str) -> None:
    """NMO-14: An empty node name ends no maintenance, and in particular not those of all nodes."""
    door = served.door()
    door.run(create(door.api, MEDIK8S, node, node, "stays"))

    with pytest.raises(Refusal, match="there is no node"):
        door.run(end(door.api, ""))

    (item,) = door.run(maintenances(door.api, node))
    assert "deletionTimestamp" not in item["metadata"]
    door.run(end(door.api, node))


def test_a_name_that_is_taken_is_refused_before_anybody_confirms(served: LocalCluster, node: str) -> None:
    """OSV-7: The preview refuses a name that another node's or a released maintenance uses.

    A finalizer of another owner keeps the released maintenance in this test.
    """
    door, path, keeper = served.door(), f"{MEDIK8S.path}/{node}", "backup.example/keep"
    head = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    metadata = {"name": node, "finalizers": [keeper]}
    made = door.create(MEDIK8S.path, {**head, "metadata": metadata, "spec": {"nodeName": "elsewhere"}})

    with pytest.raises(Refusal, match=f"the NodeMaintenance {node} exists for elsewhere"):
        door.run(foreseen(door.api, MEDIK8S, node))
    door.delete(path, uid=made["metadata"]["uid"])
    with pytest.raises(Refusal, match=f"/{node} is over, and stays until its finalizers are taken off: {keeper}"):
        door.run(foreseen(door.api, MEDIK8S, node))

    door.patch(path, {"metadata": {"finalizers": None}})
