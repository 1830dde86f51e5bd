"""Watches NodeMaintenances: merges the watches of all served API groups into one stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from console.operations.errors import OperationError
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import Rejected
from kube.client.list_watch import Change, follow, merge_streams
from kube.maintenance.groups import GROUPS, ApiGroup
from kube.maintenance.lookup import is_selector_unsupported
from kube.maintenance.objects import get_node_name
from kube.paths import Object, build_node_name_selector


async def list_served_groups(api: Api) -> list[ApiGroup]:
    """Return the API groups whose CRD is installed. Raises `OperationError` if none is installed."""
    resources = await gather_all(*(get_or_none(api.get(f"/apis/{version}")) for version in GROUPS))
    served = [
        group
        for group, api_resources in zip(GROUPS.values(), resources, strict=True)
        if _serves_maintenances(api_resources)
    ]
    if not served:
        raise OperationError("the cluster does not serve NodeMaintenances", "install the CRDs first")
    return served


def _serves_maintenances(api_resources: Object | None) -> bool:
    return any(resource["name"] == "nodemaintenances" for resource in (api_resources or {}).get("resources", []))


async def watch_maintenances(api: Api, node: str | None = None) -> AsyncGenerator[list[Object], None]:
    """Yield all NodeMaintenances (or those of `node`), oldest first: after the initial lists, then on every change."""
    groups = await list_served_groups(api)
    unsynced = set(range(len(groups)))
    objects_by_uid: dict[str, Object] = {}
    streams = [_follow_group(api, group, node) for group in groups]
    async with aclosing(merge_streams(*streams)) as changes:
        async for stream_index, change in changes:
            if change.change_type == "SYNCED":
                unsynced.discard(stream_index)
            elif change.change_type == "DELETED":
                objects_by_uid.pop(change.object["metadata"]["uid"], None)
            else:
                objects_by_uid[change.object["metadata"]["uid"]] = change.object
            if not unsynced:
                yield sorted(
                    objects_by_uid.values(), key=lambda maintenance: maintenance["metadata"]["creationTimestamp"]
                )


async def _follow_group(api: Api, group: ApiGroup, node: str | None) -> AsyncGenerator[Change, None]:
    """Yield the changes to NodeMaintenances in one API group, or only to those of `node`.

    If the CRD comes from another product, it may not support our field selector. This generator then watches all
    objects, and skips those of other nodes.
    """
    fields = "" if node is None else build_node_name_selector(node)  # `spec.nodeName` in every API group
    try:
        async with aclosing(follow(api, group.path, field_selector=fields)) as changes:
            async for change in changes:
                yield change
    except Rejected as error:
        if node is None or not is_selector_unsupported(error):
            raise
        async with aclosing(follow(api, group.path)) as changes:
            async for change in changes:
                if change.change_type == "SYNCED" or get_node_name(change.object) == node:
                    yield change
