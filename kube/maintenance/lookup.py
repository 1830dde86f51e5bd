"""Lists NodeMaintenance objects of all served groups; a group whose CRD is not installed has none (C7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kube.door.api import Api
from kube.door.errors import NotFound
from kube.door.paging import all_items
from kube.maintenance.groups import GROUPS, Group
from kube.maintenance.objects import is_deleting
from kube.paths import Object, on_node


async def maintenances(api: Api, node: str = "", version: str | None = None) -> list[Object]:
    """All NodeMaintenance objects, or those that name `node`, oldest first.

    `version` as in `Api.list`: None for the newest state, "0" for what the server has at hand.
    """
    found = await asyncio.gather(*(of_group(api, group, node, version) for group in GROUPS.values()))
    return by_age(item for items in found for item in items)


async def undeleted(api: Api, node: str, version: str | None = None) -> list[Object]:
    """Those that name `node` and are not being deleted, oldest first."""
    return [item for item in await maintenances(api, node, version) if not is_deleting(item)]


async def of_holder(api: Api, node: str, holder: str, version: str | None = None) -> list[Object]:
    """Those that name `node`, of the group of its holder, which has that uid; of all groups where none has it.

    Asked one group after another: a node has one holder, and mostly in the first group. Oldest first.
    """
    found: list[Object] = []
    for group in GROUPS.values():
        items = await of_group(api, group, node, version)
        if any(item["metadata"]["uid"] == holder for item in items):
            return by_age(items)
        found += items
    return by_age(found)


async def of_group(api: Api, group: Group, node: str = "", version: str | None = None) -> list[Object]:
    """Those of one group, in no order; none where its CRD is not installed."""
    try:
        items = await all_items(api, group.path, fields=on_node(node) if node else "", version=version)
    except NotFound:
        return []
    return [{**item, "apiVersion": group.api_version, "kind": "NodeMaintenance"} for item in items]


def by_age(items: Iterable[Object]) -> list[Object]:
    """Oldest first."""
    return sorted(items, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["uid"]))
