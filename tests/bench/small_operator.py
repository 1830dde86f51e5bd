"""A minimal operator for the benchmark's tests, which drains one node at a time.

For each maintenance, the operator cordons the node, evicts the pods and waits until the pods are gone.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from kube.client.api import Api
from kube.client.list_watch import follow
from kube.evictions.requests import build_eviction, build_eviction_path
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED, build_path, get_node_name
from kube.nodes import build_node_path
from kube.paths import Object, build_pods_on_node_query


async def run_operator() -> None:
    """Drain the node of each created NodeMaintenance, and uncordon it after its deletion, until an error occurs."""
    api = await Api.connect()
    async for change in follow(api, MEDIK8S.path):
        if change.change_type == "ADDED":
            await _drain_node(api, change.object)
        if change.change_type == "DELETED":
            await api.patch(build_node_path(get_node_name(change.object)), {"spec": {"unschedulable": None}})


async def _drain_node(api: Api, maintenance: Object) -> None:
    await api.patch(build_node_path(get_node_name(maintenance)), {"spec": {"unschedulable": True}})
    path, field_selector = build_pods_on_node_query(get_node_name(maintenance))
    remaining_uids, synced = set(), False
    async with aclosing(follow(api, path, field_selector=field_selector)) as changes:
        async for change in changes:
            if change.change_type == "ADDED":
                remaining_uids.add(change.object["metadata"]["uid"])
                await api.create(build_eviction_path(change.object), build_eviction(change.object))
            if change.change_type == "DELETED":
                remaining_uids.discard(change.object["metadata"]["uid"])
            synced = synced or change.change_type == "SYNCED"
            if synced and not remaining_uids:
                break
    await api.patch(f"{build_path(maintenance)}/status", {"status": {"phase": SUCCEEDED}})


if __name__ == "__main__":
    asyncio.run(run_operator())
