"""Reads the objects needed to evacuate virtual machines; lists of kinds that the cluster does not serve are empty."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kube.budgets import BUDGETS_PATH
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import NotFound
from kube.client.discovery import discover_resource, list_kubevirts
from kube.client.paging import list_all, list_or_empty
from kube.maintenance.lookup import list_maintenances_of_holder_group
from kube.nodes import NODES_PATH, Node, build_node_path, get_maintenance_uid
from kube.paths import Object, build_pods_on_node_query
from kube.virtualization.drain_forecast import VmiSnapshot, get_launched_vmi_key, get_owner_vm_key
from kube.virtualization.virt_launcher_budgets import VMI_UID_LABEL
from kube.virtualization.vmis import (
    API_VERSION,
    MIGRATIONS_PATH,
    VIRT_LAUNCHER_SELECTOR,
    VMI_KIND,
    VMIS_PATH,
    Resource,
    build_migrations_path,
    build_vm_path,
    build_vmi_path,
    get_node_name,
    has_drain_taint,
    is_vmi_finished,
    requests_live_migration,
)

MAX_SINGLE_NODE_READS = 20
"""Maximum number of nodes to read individually; for more, a single list request is cheaper."""


async def list_live_migrate_vmis(api: Api) -> list[Object]:
    """List the VMIs that request migration, in their newest state; without such VMIs, a pass needs no other reads."""
    return [vmi for vmi in await list_vmis(api) if requests_live_migration(vmi)]


async def list_vmis(api: Api) -> list[Object]:
    """List all VMIs, in their newest state."""
    return await list_or_empty(api, VMIS_PATH)


async def list_migrations(api: Api) -> list[Object]:
    """List all migrations, in their newest state, including those that another process has just created."""
    return await list_or_empty(api, MIGRATIONS_PATH)


async def list_own_budgets(api: Api) -> list[Object]:
    """List the budgets that carry our label for virt-launcher pods, in their newest state."""
    return (await list_all(api, BUDGETS_PATH, label_selector=VMI_UID_LABEL)).items


async def list_budgets(api: Api) -> list[Object]:
    """List all disruption budgets."""
    return (await list_all(api, BUDGETS_PATH)).items


async def read_drained_nodes(api: Api, vmis: list[Object]) -> dict[str, Node]:
    """Return the nodes of these VMIs that carry a drain taint, by name."""
    names = {get_node_name(vmi) for vmi in vmis} - {""}
    nodes = await (_get_nodes(api, names) if len(names) <= MAX_SINGLE_NODE_READS else _list_nodes(api, names))
    return {node["metadata"]["name"]: node for node in nodes if has_drain_taint(node)}


async def _get_nodes(api: Api, node_names: Iterable[str]) -> list[Node]:
    nodes = await gather_all(*(get_or_none(api.get(build_node_path(name))) for name in sorted(node_names)))
    return [node for node in nodes if node is not None]


async def _list_nodes(api: Api, node_names: Collection[str]) -> list[Node]:
    return [node for node in (await list_all(api, NODES_PATH)).items if node["metadata"]["name"] in node_names]


async def find_maintenance_of_node(api: Api, node_name: str) -> Resource | None:
    """Return the NodeMaintenance that the node's label names, or None if there is none."""
    node = await get_or_none(api.get(build_node_path(node_name)))
    uid = get_maintenance_uid(node) if node else None
    maintenances = await list_maintenances_of_holder_group(api, node_name, uid) if uid else []
    return next((item for item in maintenances if item["metadata"]["uid"] == uid), None)


async def are_vmis_served(api: Api) -> bool:
    """Return whether the cluster serves VMIs; in a cluster without VMIs, the function needs one request."""
    try:
        await discover_resource(api, API_VERSION, VMI_KIND)
    except NotFound:
        return False
    return True


async def read_vmi_snapshot(api: Api, node_name: str) -> VmiSnapshot:
    """Read the virtual machines on a node and their related objects.

    The number of requests depends on the virtual machines on the node, not on the size of the cluster.
    """
    path, field_selector = build_pods_on_node_query(node_name)
    pods, kubevirt_objects = await gather_all(
        list_all(api, path, field_selector=field_selector, label_selector=VIRT_LAUNCHER_SELECTOR), list_kubevirts(api)
    )
    vmi_keys = sorted({vmi_key for pod in pods.items if (vmi_key := get_launched_vmi_key(pod))})
    launched_vmis = await gather_all(*(get_or_none(api.get(build_vmi_path(*vmi_key))) for vmi_key in vmi_keys))
    # A VMI that migrates to this node already has a virt-launcher pod here, but is still on its source node.
    vmis = [
        vmi
        for vmi in launched_vmis
        if vmi is not None and get_node_name(vmi) in ("", node_name) and not is_vmi_finished(vmi)
    ]
    vm_keys = sorted({vm_key for vmi in vmis if (vm_key := get_owner_vm_key(vmi))})
    vms = await gather_all(*(get_or_none(api.get(build_vm_path(*vm_key))) for vm_key in vm_keys))
    namespaces = sorted({vmi["metadata"]["namespace"] for vmi in vmis})
    migration_lists = await gather_all(
        *(list_or_empty(api, build_migrations_path(namespace)) for namespace in namespaces)
    )
    vms_by_key = {vm_key: vm for vm_key, vm in zip(vm_keys, vms, strict=True) if vm is not None}
    return VmiSnapshot(
        vmis, vms_by_key, [item for items in migration_lists for item in items], next(iter(kubevirt_objects), None)
    )
