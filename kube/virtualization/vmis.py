"""VirtualMachineInstances (VMI) and VirtualMachineInstanceMigrations: nodes, phases, conditions and API paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kube.nodes import Node, is_tainted
from kube.paths import Object, encode_path_segment

Resource = Mapping[str, Any]
API_VERSION = "kubevirt.io/v1"
VM_KIND = "VirtualMachine"
VMI_KIND, MIGRATION_KIND = "VirtualMachineInstance", "VirtualMachineInstanceMigration"
HINT_KINDS = (None, VMI_KIND, MIGRATION_KIND)
"""Kinds in the consumed events; None stands for the events of this project's steps, which have no kind."""
VMIS_PATH = f"/apis/{API_VERSION}/virtualmachineinstances"
MIGRATIONS_PATH = f"/apis/{API_VERSION}/virtualmachineinstancemigrations"
LIVE_MIGRATE = "LiveMigrate"
LIVE_MIGRATE_IF_POSSIBLE, EXTERNAL = "LiveMigrateIfPossible", "External"
"""Eviction strategies of later KubeVirt versions; only KubeVirt itself implements them."""
EVACUATION_TAINTS = ("medik8s.io/drain", "kubevirt.io/drain")
"""Keys of the taints that request migration, with any value and from any client (C3, DRN-8)."""
VIRT_LAUNCHER_SELECTOR = "kubevirt.io=virt-launcher"
"""Label selector for virt-launcher pods."""
FINISHED_PHASES = ("Succeeded", "Failed")


def get_key(obj: Resource) -> tuple[str, str]:
    """Return the object's namespace and name."""
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def get_vmi_key(migration: Resource) -> tuple[str, str]:
    """Return the namespace and name of the VMI that the migration object refers to."""
    return migration["metadata"]["namespace"], str((migration.get("spec") or {}).get("vmiName") or "")


def group_by_vmi(migrations: Iterable[Resource]) -> Mapping[tuple[str, str], list[Resource]]:
    """Group migrations by the namespace and name of their VMI; the group of any other VMI is empty."""
    groups: defaultdict[tuple[str, str], list[Resource]] = defaultdict(list)
    for migration in migrations:
        groups[get_vmi_key(migration)].append(migration)
    return groups


def is_migration_of_vmi(vmi: Resource, migration: Resource) -> bool:
    """Return whether the migration belongs to this VMI, not to an earlier VMI with the same name."""
    migration_created, vmi_created = (obj["metadata"].get("creationTimestamp") or "" for obj in (migration, vmi))
    return get_vmi_key(migration) == get_key(vmi) and migration_created >= vmi_created


def build_migrations_path(namespace: str) -> str:
    """Return the API path of the migrations in a namespace."""
    return _build_path("virtualmachineinstancemigrations", namespace)


def build_migration_path(migration: Resource) -> str:
    """Return the API path of a migration."""
    return _build_path("virtualmachineinstancemigrations", *get_key(migration))


def build_vmi_path(namespace: str, name: str) -> str:
    """Return the API path of a VMI."""
    return _build_path("virtualmachineinstances", namespace, name)


def build_vm_path(namespace: str, name: str) -> str:
    """Return the API path of a VirtualMachine."""
    return _build_path("virtualmachines", namespace, name)


def _build_path(resource: str, namespace: str, name: str = "") -> str:
    path = f"/apis/{API_VERSION}/namespaces/{encode_path_segment(namespace)}/{resource}"
    return f"{path}/{encode_path_segment(name)}" if name else path


def get_node_name(vmi: Resource) -> str:
    """Return the name of the node that the VMI runs on, "" if there is none."""
    return str((vmi.get("status") or {}).get("nodeName") or "")


def requests_live_migration(vmi: Resource) -> bool:
    """Return whether the VMI requests live migration instead of a shutdown (DRN-7, C14)."""
    return bool((vmi.get("spec") or {}).get("evictionStrategy") == LIVE_MIGRATE)


def requires_migration_before_eviction(vmi: Resource) -> bool:
    """Return whether the VMI's virt-launcher pod must not be evicted, because the VMI must migrate instead."""
    return requests_live_migration(vmi) and not is_stopping(vmi)


def is_stopping(vmi: Resource) -> bool:
    """Return whether the VMI has terminated or is being deleted."""
    return is_finished(vmi) or bool(vmi["metadata"].get("deletionTimestamp"))


def is_running(vmi: Resource) -> bool:
    """Return whether the VMI is running and is not being deleted."""
    return (vmi.get("status") or {}).get("phase") == "Running" and not vmi["metadata"].get("deletionTimestamp")


def get_unmigratable_reason(vmi: Resource) -> str:
    """Return why the VMI cannot be migrated; "" if it can (OSV-2)."""
    conditions: Iterable[Resource] = (vmi.get("status") or {}).get("conditions") or []
    condition = next((condition for condition in conditions if condition.get("type") == "LiveMigratable"), {})
    if condition.get("status") == "True":
        return ""
    return str(condition.get("message") or condition.get("reason") or "it has no condition LiveMigratable yet")


def find_migration_blocker(vmi: Resource) -> str:
    """Return why the VMI cannot be migrated now, with the remedy; "" if it can.

    Unlike `get_unmigratable_reason`, this function also reports that a VMI is not running.
    """
    if not is_running(vmi):
        phase = (vmi.get("status") or {}).get("phase") or "Pending"
        remedy = f"wait, or shut down virtual machine {vmi['metadata']['name']}"
        return f"it is {phase}, and only a Running virtual machine can migrate: {remedy}"
    reason = get_unmigratable_reason(vmi)
    return f"{reason}: correct this, or shut down virtual machine {vmi['metadata']['name']}" if reason else ""


def has_drain_taint(node: Node) -> bool:
    """Return whether the node has a drain taint."""
    return any(is_tainted(node, taint) for taint in EVACUATION_TAINTS)


def is_finished(obj: Resource) -> bool:
    """Return whether the phase of the VMI or the migration is final."""
    return (obj.get("status") or {}).get("phase") in FINISHED_PHASES


def has_failed(migration: Resource) -> bool:
    """Return whether the migration has failed, so that the VMI stays on its node."""
    return (migration.get("status") or {}).get("phase") == "Failed"


def get_source_node(migration: Resource) -> str:
    """Return the migration's source node, "" until the migration's status contains it.

    The VMI's own node is not always the source: just before the migration finishes, it is already the target node.
    """
    state = (migration.get("status") or {}).get("migrationState") or {}
    return str(state.get("sourceNode") or "")


def build_migration(name: str, vmi: Resource) -> Object:
    """Build the migration with this name, which the VMI owns, so that it is deleted with the VMI."""
    namespace, vmi_name = get_key(vmi)
    metadata = {"name": name, "namespace": namespace, "labels": {"nodemaintenance.dev/evacuation": "true"}}
    owner = {"apiVersion": API_VERSION, "kind": VMI_KIND, "name": vmi_name, "uid": vmi["metadata"]["uid"]}
    return {
        "apiVersion": API_VERSION,
        "kind": MIGRATION_KIND,
        "metadata": {**metadata, "ownerReferences": [owner]},
        "spec": {"vmiName": vmi_name},
    }
