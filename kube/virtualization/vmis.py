"""VirtualMachineInstances (VMI) and their migrations (VMIM): their nodes, phases, conditions and API paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kube.nodes import Node, is_tainted
from kube.paths import Object, segment

Item = Mapping[str, Any]
API_VERSION = "kubevirt.io/v1"
MACHINE = "VirtualMachine"
INSTANCE, MIGRATION = "VirtualMachineInstance", "VirtualMachineInstanceMigration"
INSTANCES = f"/apis/{API_VERSION}/virtualmachineinstances"
MIGRATIONS = f"/apis/{API_VERSION}/virtualmachineinstancemigrations"
LIVE_MIGRATE = "LiveMigrate"
LIVE_MIGRATE_IF_POSSIBLE, EXTERNAL = "LiveMigrateIfPossible", "External"
"""Strategies of later KubeVirt versions, which only KubeVirt itself implements."""
DRAIN_TAINTS = ("medik8s.io/drain", "kubevirt.io/drain")
"""Keys of the taints that request migration, whichever client set them and with any value (C3, DRN-8)."""
LAUNCHERS = "kubevirt.io=virt-launcher"
"""Label selector for virt-launcher pods."""
FINISHED = ("Succeeded", "Failed")


def key(item: Item) -> tuple[str, str]:
    """Return the object's namespace and name."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def vmi_of(migration: Item) -> tuple[str, str]:
    """Return the namespace and name of the VMI that the migration moves."""
    return migration["metadata"]["namespace"], str((migration.get("spec") or {}).get("vmiName") or "")


def by_machine(migrations: Iterable[Item]) -> Mapping[tuple[str, str], list[Item]]:
    """Group the migrations by the namespace and name of their VMI; any other key has an empty list."""
    found: defaultdict[tuple[str, str], list[Item]] = defaultdict(list)
    for migration in migrations:
        found[vmi_of(migration)].append(migration)
    return found


def is_moved_by(vmi: Item, migration: Item) -> bool:
    """Return whether the migration belongs to this VMI, and not to an earlier VMI with the same name."""
    made, since = (item["metadata"].get("creationTimestamp") or "" for item in (migration, vmi))
    return vmi_of(migration) == key(vmi) and made >= since


def migrations_path(namespace: str) -> str:
    """Return the API path of the migrations in a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{segment(namespace)}/virtualmachineinstancemigrations"


def migration_path(migration: Item) -> str:
    """Return the API path of a migration."""
    namespace, name = key(migration)
    return f"{migrations_path(namespace)}/{segment(name)}"


def instance_path(namespace: str, name: str) -> str:
    """Return the API path of a VMI."""
    return f"/apis/{API_VERSION}/namespaces/{segment(namespace)}/virtualmachineinstances/{segment(name)}"


def machine_path(namespace: str, name: str) -> str:
    """Return the API path of a VirtualMachine."""
    return f"/apis/{API_VERSION}/namespaces/{segment(namespace)}/virtualmachines/{segment(name)}"


def node_of(vmi: Item) -> str:
    """Return the node that the VMI runs on, "" for none."""
    return str((vmi.get("status") or {}).get("nodeName") or "")


def stays_alive(vmi: Item) -> bool:
    """Return whether the VMI requests migration instead of a shutdown (DRN-7, C14)."""
    return bool((vmi.get("spec") or {}).get("evictionStrategy") == LIVE_MIGRATE)


def is_kept(vmi: Item) -> bool:
    """Return whether the VMI's virt-launcher pod must not be evicted: the VMI requests migration and is not ending."""
    return stays_alive(vmi) and not is_ending(vmi)


def is_ending(vmi: Item) -> bool:
    """Return whether the VMI has finished or is being deleted."""
    return is_over(vmi) or bool(vmi["metadata"].get("deletionTimestamp"))


def is_running(vmi: Item) -> bool:
    """Return whether the VMI runs and is not being deleted."""
    return (vmi.get("status") or {}).get("phase") == "Running" and not vmi["metadata"].get("deletionTimestamp")


def is_over(vmi: Item) -> bool:
    """Return whether the VMI has finished."""
    return (vmi.get("status") or {}).get("phase") in FINISHED


def unable(vmi: Item) -> str:
    """Return why the VMI cannot be migrated, "" if it can (OSV-2)."""
    conditions: Iterable[Item] = (vmi.get("status") or {}).get("conditions") or []
    found = next((item for item in conditions if item.get("type") == "LiveMigratable"), {})
    if found.get("status") == "True":
        return ""
    return str(found.get("message") or found.get("reason") or "it has no condition LiveMigratable yet")


def hindrance(vmi: Item) -> str:
    """Return why the VMI cannot be migrated now, with the remedy; "" if it can.

    Unlike `unable`, the function also reports a VMI that is not running.
    """
    if not is_running(vmi):
        phase = (vmi.get("status") or {}).get("phase") or "Pending"
        return f"it is {phase}, and only what is Running can migrate: wait, or shut down {vmi['metadata']['name']}"
    why = unable(vmi)
    return f"{why}: mend that, or shut down virtual machine {vmi['metadata']['name']}" if why else ""


def is_drained(node: Node) -> bool:
    """Return whether the node carries a drain taint."""
    return any(is_tainted(node, taint) for taint in DRAIN_TAINTS)


def is_finished(migration: Item) -> bool:
    """Return whether the migration has ended."""
    return (migration.get("status") or {}).get("phase") in FINISHED


def has_failed(migration: Item) -> bool:
    """Return whether the migration has failed, so that the VMI stayed on its node."""
    return (migration.get("status") or {}).get("phase") == "Failed"


def source_of(migration: Item) -> str:
    """Return the migration's source node, "" until its status contains the node.

    Just before a migration finishes, its VMI is already on the target node, so the VMI's node is not always the source.
    """
    state = (migration.get("status") or {}).get("migrationState") or {}
    return str(state.get("sourceNode") or "")


def migration_body(name: str, vmi: Item) -> Object:
    """Build the migration of this name; the VMI owns it, so it is deleted with the VMI."""
    namespace, instance = key(vmi)
    metadata = {"name": name, "namespace": namespace, "labels": {"nodemaintenance.dev/evacuation": "true"}}
    owner = {"apiVersion": API_VERSION, "kind": INSTANCE, "name": instance, "uid": vmi["metadata"]["uid"]}
    return {
        "apiVersion": API_VERSION,
        "kind": MIGRATION,
        "metadata": {**metadata, "ownerReferences": [owner]},
        "spec": {"vmiName": instance},
    }
