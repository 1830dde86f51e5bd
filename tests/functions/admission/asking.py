"""NodeMaintenances as people create them."""

from __future__ import annotations

import itertools

from kube.door.sync_client import Cluster
from kube.maintenance.groups import GROUPS, MEDIK8S, Group
from kube.paths import Object

_numbers = itertools.count(1)


def named(node: str, group: Group = MEDIK8S, name: str = "", **spec: object) -> Object:
    """A maintenance of the node, by any name if none is given."""
    return {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": name or f"asked-{next(_numbers)}"},
        "spec": {"nodeName": node, **spec},
    }


def create(door: Cluster, item: Object) -> Object:
    """Create it."""
    return door.create(GROUPS[item["apiVersion"]].path, item)
