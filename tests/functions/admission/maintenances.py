"""Builders for NodeMaintenance objects as users create them."""

from __future__ import annotations

import itertools

from kube.client.sync_client import SyncClient
from kube.maintenance.groups import GROUPS, MEDIK8S, ApiGroup
from kube.paths import Object

_numbers = itertools.count(1)


def build_maintenance(node: str, group: ApiGroup = MEDIK8S, name: str = "", **spec: object) -> Object:
    """Build a NodeMaintenance for `node`, with a generated name if `name` is empty."""
    return {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": name or f"asked-{next(_numbers)}"},
        "spec": {"nodeName": node, **spec},
    }


def create_maintenance(client: SyncClient, maintenance: Object) -> Object:
    """Create the NodeMaintenance in its API group and return it."""
    return client.create(GROUPS[maintenance["apiVersion"]].path, maintenance)
