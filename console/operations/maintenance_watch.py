"""Watches NodeMaintenances: merges the watches of all served API groups into one stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from console.operations.errors import OperationError
from kube.client.api import Api, absent_ok
from kube.client.api_errors import Rejected
from kube.client.concurrent_requests import together
from kube.client.list_watch import Change, follow, merged
from kube.maintenance.groups import GROUPS, Group
from kube.maintenance.lookup import knows_no_selector
from kube.maintenance.objects import node_name
from kube.paths import Object, on_node


async def served_groups(api: Api) -> list[Group]:
    """Return the API groups whose CRD is installed. Raises `OperationError` if none is."""
    answers = await together(*(absent_ok(api.get(f"/apis/{version}")) for version in GROUPS))
    served = [group for group, answer in zip(GROUPS.values(), answers, strict=True) if _serves(answer)]
    if not served:
        raise OperationError("this cluster has no NodeMaintenance kind", "install the CRDs first")
    return served


def _serves(answer: Object | None) -> bool:
    return any(resource["name"] == "nodemaintenances" for resource in (answer or {}).get("resources", []))


async def watched(api: Api, node: str | None = None) -> AsyncGenerator[list[Object], None]:
    """Yield all NodeMaintenances (of `node`), oldest first: once after the initial lists, then after every change."""
    groups = await served_groups(api)
    unread = set(range(len(groups)))
    known: dict[str, Object] = {}
    streams = [_followed(api, group, node) for group in groups]
    async with aclosing(merged(*streams)) as changes:
        async for number, change in changes:
            if change.kind == "SYNCED":
                unread.discard(number)
            elif change.kind == "DELETED":
                known.pop(change.object["metadata"]["uid"], None)
            else:
                known[change.object["metadata"]["uid"]] = change.object
            if not unread:
                yield sorted(known.values(), key=lambda item: item["metadata"]["creationTimestamp"])


async def _followed(api: Api, group: Group, node: str | None) -> AsyncGenerator[Change, None]:
    """Yield the changes of one API group (of `node`).

    If the CRD comes from another product, it may not support our field selector. The function then watches all objects,
    and skips those of other nodes.
    """
    fields = "" if node is None else on_node(node)  # all kinds name their node in spec.nodeName
    try:
        async with aclosing(follow(api, group.path, fields=fields)) as changes:
            async for change in changes:
                yield change
    except Rejected as error:
        if node is None or not knows_no_selector(error):
            raise
        async with aclosing(follow(api, group.path)) as changes:
            async for change in changes:
                if change.kind == "SYNCED" or node_name(change.object) == node:
                    yield change
