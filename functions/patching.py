"""Patches a node: look, send, and look again when somebody wrote in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from functions.failures import Retry
from kube.door.api import JSON_PATCH
from kube.door.api_errors import Conflict
from kube.door.sync_client import Cluster
from kube.nodes import node_path
from kube.paths import Object

Seen = TypeVar("Seen")
ATTEMPTS = 5
"""Others write taints in bursts when a node is cordoned; after this many the broker's backoff is the better wait."""


def patch_node(name: str, look: Callable[[], tuple[Seen, list[Object]]], cluster: Cluster) -> tuple[Seen, bool]:
    """Send the patch that `look` makes of what it reads, nothing when it makes none (design rule 2).

    After a conflict all that decides is read anew, the node as well as whom it is patched for (design rule 12).
    Returns what was seen last, and whether something was sent. Raises `Retry` when others keep writing.
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
