"""Patches a node: read, decide, send, and decide again when somebody wrote in between."""

from __future__ import annotations

from collections.abc import Callable

from functions.failures import Retry
from kube.door.api import JSON_PATCH, absent_ok
from kube.door.cluster import Cluster
from kube.door.errors import Conflict
from kube.nodes import Node, node_path
from kube.paths import Object

ATTEMPTS = 5
"""Others write taints in bursts when a node is cordoned; after this many the broker's backoff is the better wait."""


def patch_node(name: str, node: Node | None, decide: Callable[[Node], list[Object]], cluster: Cluster) -> bool:
    """Send what `decide` makes of the node, none when it makes nothing (design rule 2).

    `node` is the first reading, None when the node is gone. Returns whether something was sent.
    Raises `Retry` when others keep writing.
    """
    for _ in range(ATTEMPTS):
        patch = decide(node) if node else []
        if not patch:
            return False
        try:
            cluster.patch(node_path(name), patch, JSON_PATCH)
            return True
        except Conflict:
            node = cluster.run(absent_ok(cluster.api.get(node_path(name))))
    raise Retry(f"node {name} changed {ATTEMPTS} times while it was patched")
