"""Patches a node with optimistic concurrency: reads the node, sends the patch, and retries both after a conflict."""

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
"""Maximum number of attempts per event; after the last one, the step raises `Retry` and the broker redelivers.

Conflicts are likely, because other controllers add several taints in quick succession after a cordon.
"""


def patch_node(
    name: str,
    read_and_build_patch: Callable[[], tuple[Snapshot, list[Object] | Object]],
    client: SyncClient,
    *,
    subresource: str = "",
    content_type: str = JSON_PATCH,
) -> tuple[Snapshot, bool]:
    """Patch the node with the patch that `read_and_build_patch` builds from what it reads, unless the patch is empty.

    After a conflict, the function calls `read_and_build_patch` again, so that it reads all of its input again
    (design rules 1 and 2). Returns what `read_and_build_patch` read last, and whether a patch was sent.
    `subresource` is a suffix of the node's path, such as "/status". Raises `Retry` if other clients keep changing the
    node.
    """
    for _ in range(MAX_ATTEMPTS):
        snapshot, patch = read_and_build_patch()
        if not patch:
            return snapshot, False
        try:
            client.patch(f"{build_node_path(name)}{subresource}", patch, content_type)
            return snapshot, True
        except Conflict:
            continue
    raise Retry(f'cannot patch node "{name}": other clients changed it during each of {MAX_ATTEMPTS} attempts')
