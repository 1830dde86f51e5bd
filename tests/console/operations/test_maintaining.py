"""Which maintenances are ended, on a real API server."""

from __future__ import annotations

import pytest

from console.operations.errors import Refusal
from console.operations.maintaining import create, end
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
