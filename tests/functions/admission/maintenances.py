"""NodeMaintenance objects as users create them."""

from __future__ import annotations

import itertools

from kube.client.sync_client import Cluster
from kube.maintenance.groups import GROUPS, MEDIK8S, Group
from kube.paths import Object

_numbers = itertools.count(1)


def named(node: str, group: Group = MEDIK8S, name: str = "", **spec: object) -> Object:
    """Build a NodeMaintenance for `node`, with a generated name if `name` is empty."""
    return {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": name or f"asked-{next(_numbers)}"},
        "spec": {"nodeName": node, **spec},
    }


def create(door: Cluster, item: Object) -> Object:
    """Create the NodeMaintenance in its API group and return it."""
    return door.create(GROUPS[item["apiVersion"]].path, item)
