"""Lists NodeMaintenance objects of all served groups; a group whose CRD is not installed has none (C7)."""

from __future__ import annotations

import asyncio

from kube.door.api import Api, absent_ok
from kube.maintenance.groups import GROUPS, Group
from kube.maintenance.objects import is_deleting
from kube.paths import Object, on_node


async def maintenances(api: Api, node: str = "", version: str | None = None) -> list[Object]:
    """All NodeMaintenance objects, or those that name `node`, oldest first.

    `version` as in `Api.list`: None for the newest state, "0" for what the server has at hand.
    """
    found = await asyncio.gather(*(_of_group(api, group, node, version) for group in GROUPS.values()))
    return sorted((item for items in found for item in items), key=_age)


async def undeleted(api: Api, node: str, version: str | None = None) -> list[Object]:
    """Those that name `node` and are not being deleted, oldest first."""
    return [item for item in await maintenances(api, node, version) if not is_deleting(item)]


async def _of_group(api: Api, group: Group, node: str, version: str | None) -> list[Object]:
    fields = on_node(node) if node else ""
    answer = await absent_ok(api.list(group.path, fields=fields, version=version))
    items = (answer or {}).get("items", [])
    return [{**item, "apiVersion": group.api_version, "kind": "NodeMaintenance"} for item in items]


def _age(item: Object) -> tuple[str, str]:
    return item["metadata"]["creationTimestamp"], item["metadata"]["uid"]
