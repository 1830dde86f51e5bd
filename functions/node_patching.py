"""Patches a node: reads, sends the patch, and reads again if another client has written in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from functions.failures import Retry
from kube.client.api import JSON_PATCH
from kube.client.api_errors import Conflict
from kube.client.sync_client import Cluster
from kube.nodes import node_path
from kube.paths import Object

Seen = TypeVar("Seen")
ATTEMPTS = 5
"""Maximum number of attempts per event.

Other controllers write taints in bursts after a cordon. After these attempts, the step leaves the retry to the broker.
"""


def patch_node(name: str, look: Callable[[], tuple[Seen, list[Object]]], cluster: Cluster) -> tuple[Seen, bool]:
    """Send the patch that `look` computes from what it reads, or nothing if that patch is empty (design rule 2).

    After a conflict, `look` reads all of its input again: the node and the maintenance (design rule 1). Returns what
    `look` read last, and whether a patch was sent. Raises `Retry` if other clients keep changing the node.
    """
    for _ in range(ATTEMPTS):
        seen, patch = look()
        if not patch:
            return seen, False
        try:
            cluster.patch(node_path(name), patch, JSON_PATCH)
            return seen, True
        except Conflict:
            continue
    raise Retry(f"node {name} changed {ATTEMPTS} times while it was patched")
