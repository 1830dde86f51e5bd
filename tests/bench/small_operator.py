"""A minimal operator for the tests of the benchmark; it handles one maintenance after another.

For each one it cordons the node, evicts the pods and waits until they are gone.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from kube.client.api import Api
from kube.client.list_watch import follow
from kube.evictions import eviction_of, eviction_path
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED, node_name, path
from kube.nodes import node_path
from kube.paths import Object, pods_on


async def serve() -> None:
    """Handle every NodeMaintenance until an error occurs."""
    api = await Api.connect()
    async for change in follow(api, MEDIK8S.path):
        if change.kind == "ADDED":
            await _drain(api, change.object)
        if change.kind == "DELETED":
            await api.patch(node_path(node_name(change.object)), {"spec": {"unschedulable": None}})


async def _drain(api: Api, maintenance: Object) -> None:
    await api.patch(node_path(node_name(maintenance)), {"spec": {"unschedulable": True}})
    where, fields = pods_on(node_name(maintenance))
    left, synced = set(), False
    async with aclosing(follow(api, where, fields=fields)) as changes:
        async for change in changes:
            if change.kind == "ADDED":
                left.add(change.object["metadata"]["uid"])
                await api.create(eviction_path(change.object), eviction_of(change.object))
            if change.kind == "DELETED":
                left.discard(change.object["metadata"]["uid"])
            synced = synced or change.kind == "SYNCED"
            if synced and not left:
                break
    await api.patch(f"{path(maintenance)}/status", {"status": {"phase": SUCCEEDED}})


if __name__ == "__main__":
    asyncio.run(serve())
