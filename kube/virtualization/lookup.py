"""Reads the objects needed to evacuate VMs; a kind that the cluster does not serve counts as an empty list."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import chain
from typing import NamedTuple

from kube.budgets import BUDGETS_PATH
from kube.client.api import Api, gather_all, get_or_none
from kube.client.api_errors import NotFound
from kube.client.discovery import discover_resource, list_kubevirts
from kube.client.paging import list_all, list_or_empty
from kube.maintenance.lookup import list_maintenances_of_holder_group
from kube.nodes import NODES_PATH, Node, build_node_path, get_maintenance_uid
from kube.paths import Object, build_pods_on_node_query
from kube.virtualization.drain_forecast import VmiSnapshot, get_launched_vmi_key, get_owner_vm_key
from kube.virtualization.evacuation import EvacuationPlan, MigrationSlots, Wait, plan_evacuation
from kube.virtualization.kubevirt_evacuation import does_kubevirt_protect_vmi, find_kubevirt_waits
from kube.virtualization.migration_claims import LEASE_PATH, parse_claims, parse_refusals
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
    is_finished,
    requests_live_migration,
)

MAX_SINGLE_NODE_READS = 20
"""Maximum number of nodes to read one by one; for more, a single list request is cheaper."""


class MigrationSnapshot(NamedTuple):
    """The cluster's VMIs, migrations and claims at one time.

    Attributes:
        vmis: The VMIs with the eviction strategy `LiveMigrate`.
        lease: The Lease that contains the claims; None if it does not exist or was not read.
        now: The time of the snapshot.
        evacuation: The migrations to create and the waiting VMIs, as computed from the snapshot.
    """

    vmis: list[Object]
    lease: Object | None
    now: datetime
    evacuation: EvacuationPlan


async def list_vmis(api: Api) -> list[Object]:
    """Return all VMIs in their latest state."""
    return await list_or_empty(api, VMIS_PATH)


async def list_budgets(api: Api, label_selector: str = "") -> list[Object]:
    """Return PodDisruptionBudgets in their latest state."""
    return (await list_all(api, BUDGETS_PATH, label_selector=label_selector)).items


async def read_migration_snapshot(
    api: Api, vmis: list[Object], slots: MigrationSlots, attempt: str = ""
) -> MigrationSnapshot:
    """Read the migration snapshot, evaluated for the attempt with the id `attempt`.

    If none of these VMIs is on a drained node, only their nodes are read.
    """
    drained = await _read_draining_nodes(api, vmis)
    if not drained:
        return MigrationSnapshot(vmis, None, datetime.now(timezone.utc), EvacuationPlan())
    # The Lease is read first: if another process claims a migration later, this attempt's write fails.
    lease = await get_or_none(api.get(LEASE_PATH))
    # Migrations are listed before VMIs: if a migration ends in between, its VMI is listed on the target node.
    migrations = await list_or_empty(api, MIGRATIONS_PATH)
    current_vmis = await list_vmis(api)
    now = datetime.now(timezone.utc)
    claims, refusals = parse_claims(lease), parse_refusals(lease, now)
    evacuation = plan_evacuation(current_vmis, migrations, drained.keys(), claims, slots, now, attempt, refusals)
    return MigrationSnapshot(list(filter(requests_live_migration, current_vmis)), lease, now, evacuation)


async def read_kubevirt_waits(api: Api, kubevirt: Resource, vmis: list[Object]) -> dict[tuple[str, str], Wait]:
    """Return what the VMIs that KubeVirt migrates wait for, by the VMI's namespace and name.

    If none of these VMIs is on a drained node, only their nodes are read.
    """
    drained = await _read_draining_nodes(api, [vmi for vmi in vmis if does_kubevirt_protect_vmi(kubevirt, vmi)])
    if not drained:
        return {}
    # Migrations are listed before VMIs: if a migration ends in between, its VMI is listed on the target node.
    migrations = await list_or_empty(api, MIGRATIONS_PATH)
    return find_kubevirt_waits(await list_vmis(api), migrations, drained, kubevirt)


async def read_vms_to_stop(api: Api, vmis: Iterable[Object]) -> list[tuple[Resource, str]]:
    """Return the VirtualMachines that drains shut down instead of migrating them, each with its node's name."""
    owned = [vmi for vmi in vmis if get_owner_vm_key(vmi) and not requests_live_migration(vmi)]
    drained = await _read_draining_nodes(api, owned)
    nodes_by_vm = {get_owner_vm_key(vmi): get_node_name(vmi) for vmi in owned if get_node_name(vmi) in drained}
    keys = [key for key in nodes_by_vm if key]
    vms = await gather_all(*(get_or_none(api.get(build_vm_path(*key))) for key in keys))
    return [(vm, nodes_by_vm[key]) for key, vm in zip(keys, vms, strict=True) if vm is not None]


async def _read_draining_nodes(api: Api, vmis: Iterable[Object]) -> dict[str, Node]:
    """Return the nodes of these VMIs that have a drain taint, by name."""
    names = {get_node_name(vmi) for vmi in vmis} - {""}
    if len(names) <= MAX_SINGLE_NODE_READS:
        found = await gather_all(*(get_or_none(api.get(build_node_path(name))) for name in sorted(names)))
    else:
        found = (await list_all(api, NODES_PATH)).items
    nodes = {node["metadata"]["name"]: node for node in found if node}
    return {name: node for name, node in nodes.items() if name in names and has_drain_taint(node)}


async def find_maintenance_of_node(api: Api, node_name: str) -> Resource | None:
    """Return the NodeMaintenance whose uid is in the node's maintenance label, None if there is none."""
    node = await get_or_none(api.get(build_node_path(node_name)))
    uid = get_maintenance_uid(node) if node else None
    maintenances = await list_maintenances_of_holder_group(api, node_name, uid) if uid else []
    return next((item for item in maintenances if item["metadata"]["uid"] == uid), None)


async def is_vmi_kind_served(api: Api) -> bool:
    """Return whether the API server serves VMIs."""
    try:
        await discover_resource(api, API_VERSION, VMI_KIND)
    except NotFound:
        return False
    return True


async def read_vmi_snapshot(api: Api, node_name: str) -> VmiSnapshot:
    """Read the virtual machines on a node and the objects related to them.

    The number of requests depends only on the virtual machines on the node, not on the size of the cluster.
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
        if vmi is not None and get_node_name(vmi) in ("", node_name) and not is_finished(vmi)
    ]
    vm_keys = sorted({vm_key for vmi in vmis if (vm_key := get_owner_vm_key(vmi))})
    vms = await gather_all(*(get_or_none(api.get(build_vm_path(*vm_key))) for vm_key in vm_keys))
    namespaces = sorted({vmi["metadata"]["namespace"] for vmi in vmis})
    migrations = await gather_all(*(list_or_empty(api, build_migrations_path(namespace)) for namespace in namespaces))
    vms_by_key = {vm_key: vm for vm_key, vm in zip(vm_keys, vms, strict=True) if vm is not None}
    kubevirt = next(iter(kubevirt_objects), None)
    return VmiSnapshot(vmis, vms_by_key, list(chain.from_iterable(migrations)), kubevirt)
