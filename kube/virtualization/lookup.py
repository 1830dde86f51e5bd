"""Reads the objects for the evacuation of virtual machines, concurrently; a kind that is not served has no objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kube.budgets import BUDGETS
from kube.client.api import Api, absent_ok
from kube.client.api_errors import NotFound
from kube.client.concurrent_requests import together
from kube.client.discovery import kubevirts, resource
from kube.client.paging import listed, pages
from kube.maintenance.lookup import of_holder
from kube.nodes import NODES, Node, labelled_for, node_path
from kube.paths import Object, pods_on
from kube.virtualization.virt_launcher_budgets import LABEL
from kube.virtualization.vmis import (
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
from kube.virtualization.drain_forecast import Hosted, launcher_of, owner_of

ONE_BY_ONE = 20
"""Maximum number of nodes to read individually; for more, a list costs less."""


async def instances(api: Api) -> list[Object]:
    """List the VMIs that request migration, in their newest state; without any, no other object has to be read."""
    return [vmi for vmi in await all_instances(api) if stays_alive(vmi)]


async def all_instances(api: Api) -> list[Object]:
    """List all VMIs, in their newest state."""
    return await listed(api, INSTANCES)


async def migrations(api: Api) -> list[Object]:
    """List all migrations, in their newest state, including those that another process has just created."""
    return await listed(api, MIGRATIONS)


async def launcher_budgets(api: Api) -> list[Object]:
    """List the budgets with our label for virt-launcher pods, in their newest state."""
    return (await pages(api, BUDGETS, labels=LABEL)).items


async def budgets(api: Api) -> list[Object]:
    """List all disruption budgets."""
    return (await pages(api, BUDGETS)).items


async def drained_nodes(api: Api, vmis: list[Object]) -> dict[str, Node]:
    """Return the nodes of these VMIs that carry a drain taint, by name."""
    names = {node_of(vmi) for vmi in vmis} - {""}
    nodes = await (_read(api, names) if len(names) <= ONE_BY_ONE else _listed(api, names))
    return {node["metadata"]["name"]: node for node in nodes if is_drained(node)}


async def _read(api: Api, names: Iterable[str]) -> list[Node]:
    nodes = await together(*(absent_ok(api.get(node_path(name))) for name in sorted(names)))
    return [node for node in nodes if node is not None]


async def _listed(api: Api, names: Collection[str]) -> list[Node]:
    return [node for node in (await pages(api, NODES)).items if node["metadata"]["name"] in names]


async def maintenance_on(api: Api, name: str) -> Item | None:
    """Return the NodeMaintenance that the node's label names, or None if there is none."""
    node = await absent_ok(api.get(node_path(name)))
    uid = labelled_for(node) if node else None
    found = await of_holder(api, name, uid) if uid else []
    return next((item for item in found if item["metadata"]["uid"] == uid), None)


async def is_served(api: Api) -> bool:
    """Return whether the cluster serves VMIs; in a cluster without them, this costs one request."""
    try:
        await resource(api, API_VERSION, INSTANCE)
    except NotFound:
        return False
    return True


async def hosted(api: Api, node: str) -> Hosted:
    """Read the virtual machines of a node and their related objects.

    The cost depends on the number of virtual machines on the node, not on the size of the cluster.
    """
    path, fields = pods_on(node)
    pods, theirs = await together(pages(api, path, fields=fields, labels=LAUNCHERS), kubevirts(api))
    names = sorted({name for pod in pods.items if (name := launcher_of(pod))})
    found = await together(*(absent_ok(api.get(instance_path(*name))) for name in names))
    # A VMI that migrates to this node already has a virt-launcher pod here, but is still on its source node.
    vmis = [vmi for vmi in found if vmi is not None and node_of(vmi) in ("", node) and not is_over(vmi)]
    owners = sorted({owner for vmi in vmis if (owner := owner_of(vmi))})
    machines = await together(*(absent_ok(api.get(machine_path(*owner))) for owner in owners))
    spaces = sorted({vmi["metadata"]["namespace"] for vmi in vmis})
    moving = await together(*(listed(api, migrations_path(space)) for space in spaces))
    owned = {owner: machine for owner, machine in zip(owners, machines, strict=True) if machine is not None}
    return Hosted(vmis, owned, [item for items in moving for item in items], next(iter(theirs), None))
