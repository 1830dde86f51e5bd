"""Patches a node: reads it, sends the patch, and starts again if another client has changed the node since the read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from functions.failures import Retry
from kube.client.api import JSON_PATCH
from kube.client.api_errors import Conflict
from kube.client.sync_client import SyncClient
from kube.nodes import build_node_path
from kube.paths import Object

Snapshot = TypeVar("Snapshot")
MAX_ATTEMPTS = 5
"""Maximum number of attempts per event; after them, the step leaves the retry to the broker.

Other controllers write taints in bursts after a cordon.
"""


def patch_node(
    name: str,
    plan_patch: Callable[[], tuple[Snapshot, list[Object] | Object]],
    client: SyncClient,
    *,
    subresource: str = "",
    content_type: str = JSON_PATCH,
) -> tuple[Snapshot, bool]:
    """Send the patch that `plan_patch` computes from the state that it reads; send no empty patch (design rule 2).

    After a conflict, `plan_patch` reads all of its input again: the node and the maintenance (design rule 1). Returns
    the state that `plan_patch` read last, and whether a patch was sent. `subresource` is the end of the node's path,
    such as "/status". Raises `Retry` if other clients keep changing the node.
    """
    for _ in range(MAX_ATTEMPTS):
        snapshot, patch = plan_patch()
        if not patch:
            return snapshot, False
        try:
            client.patch(f"{build_node_path(name)}{subresource}", patch, content_type)
            return snapshot, True
        except Conflict:
            continue
    raise Retry(f'cannot patch node "{name}": other clients changed it during each of {MAX_ATTEMPTS} attempts')
