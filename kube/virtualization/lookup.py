"""Reads what virtual machines stand on, side by side. A kind that is not served has no objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kube.budgets import BUDGETS
from kube.door.api import Api, absent_ok
from kube.door.api_errors import NotFound
from kube.door.concurrent_requests import together
from kube.door.discovery import kubevirts, resource
from kube.door.paging import listed, pages
from kube.maintenance.lookup import of_holder
from kube.nodes import NODES, Node, labelled_for, node_path
from kube.paths import Object, pods_on
from kube.virtualization.launcher_budgets import LABEL
from kube.virtualization.machines import (
    API_VERSION,
    INSTANCE,
    INSTANCES,
    LAUNCHERS,
    MIGRATIONS,
    Item,
    instance_path,
    is_drained,
    is_over,
    machine_path,
    migrations_path,
    node_of,
    stays_alive,
)
from kube.virtualization.outlook import Hosted, launcher_of, owner_of

ONE_BY_ONE = 20
"""Nodes that are read each by itself; more cost less as a list."""


async def instances(api: Api) -> list[Object]:
    """The VMIs that ask for migration, in the newest state: without any there is nothing else to read."""
    return [vmi for vmi in await all_instances(api) if stays_alive(vmi)]


async def all_instances(api: Api) -> list[Object]:
    """All VMIs, in the newest state."""
    return await listed(api, INSTANCES)


async def migrations(api: Api) -> list[Object]:
    """All migrations, in the newest state: what one who looked before has made is among them."""
    return await listed(api, MIGRATIONS)


async def launcher_budgets(api: Api) -> list[Object]:
    """Those that we have made for launcher pods, in the newest state."""
    return (await pages(api, BUDGETS, labels=LABEL)).items


async def budgets(api: Api) -> list[Object]:
    """All disruption budgets."""
    return (await pages(api, BUDGETS)).items


async def drained_nodes(api: Api, vmis: list[Object]) -> dict[str, Node]:
    """Those of the nodes of these VMIs that carry a drain taint, by name."""
    names = {node_of(vmi) for vmi in vmis} - {""}
    nodes = await (_read(api, names) if len(names) <= ONE_BY_ONE else _listed(api, names))
    return {node["metadata"]["name"]: node for node in nodes if is_drained(node)}


async def _read(api: Api, names: Iterable[str]) -> list[Node]:
    nodes = await together(*(absent_ok(api.get(node_path(name))) for name in sorted(names)))
    return [node for node in nodes if node is not None]


async def _listed(api: Api, names: Collection[str]) -> list[Node]:
    return [node for node in (await pages(api, NODES)).items if node["metadata"]["name"] in names]


async def maintenance_on(api: Api, name: str) -> Item | None:
    """The NodeMaintenance that a node is labelled for; None when there is none."""
    node = await absent_ok(api.get(node_path(name)))
    uid = labelled_for(node) if node else None
    found = await of_holder(api, name, uid) if uid else []
    return next((item for item in found if item["metadata"]["uid"] == uid), None)


async def is_served(api: Api) -> bool:
    """Whether the cluster has virtual machines at all: one request, where it has none."""
    try:
        await resource(api, API_VERSION, INSTANCE)
    except NotFound:
        return False
    return True


async def hosted(api: Api, node: str) -> Hosted:
    """The virtual machines of a node, with what is about them. It costs what is there, not what the cluster has."""
    path, fields = pods_on(node)
    pods, theirs = await together(pages(api, path, fields=fields, labels=LAUNCHERS), kubevirts(api))
    names = sorted({name for pod in pods.items if (name := launcher_of(pod))})
    found = await together(*(absent_ok(api.get(instance_path(*name))) for name in names))
    # One that comes here has a launcher here already, and is still on its other node.
    vmis = [vmi for vmi in found if vmi is not None and node_of(vmi) in ("", node) and not is_over(vmi)]
    owners = sorted({owner for vmi in vmis if (owner := owner_of(vmi))})
    machines = await together(*(absent_ok(api.get(machine_path(*owner))) for owner in owners))
    spaces = sorted({vmi["metadata"]["namespace"] for vmi in vmis})
    moving = await together(*(listed(api, migrations_path(space)) for space in spaces))
    owned = {owner: machine for owner, machine in zip(owners, machines, strict=True) if machine is not None}
    return Hosted(vmis, owned, [item for items in moving for item in items], next(iter(theirs), None))
