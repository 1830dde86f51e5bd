"""Which maintenances are ended, and which not begun, on a real API server."""

from __future__ import annotations

import pytest

from console.operations.errors import Refusal
from console.operations.maintaining import create, end, foreseen
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.lookup import maintenances
from localcluster.cluster import LocalCluster


def test_no_name_ends_no_maintenance(served: LocalCluster, node: str) -> None:
    """NMO-14: an empty name is no node's, and least of all that of every node."""
    door = served.door()
    door.run(create(door.api, MEDIK8S, node, node, "stays"))

    with pytest.raises(Refusal, match="there is no node"):
        door.run(end(door.api, ""))

    (item,) = door.run(maintenances(door.api, node))
    assert "deletionTimestamp" not in item["metadata"]
    door.run(end(door.api, node))


def test_a_name_that_is_taken_is_refused_before_anybody_confirms(served: LocalCluster, node: str) -> None:
    """OSV-7: by another node's maintenance, and by one that is over and stays for somebody else's finalizer."""
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
