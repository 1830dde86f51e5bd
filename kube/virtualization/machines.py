"""Virtual machine instances (VMI) and their migrations (VMIM): where they are, what they say of themselves. Pure."""

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
"""Strategies of later versions of KubeVirt, which are its own to follow."""
DRAIN_TAINTS = ("medik8s.io/drain", "kubevirt.io/drain")
"""Keys of the taints that ask for migration, whoever set them, with whatever value (C3, DRN-8)."""
LAUNCHERS = "kubevirt.io=virt-launcher"
"""Selects the launcher pods."""
FINISHED = ("Succeeded", "Failed")


def key(item: Item) -> tuple[str, str]:
    """Namespace and name."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def vmi_of(migration: Item) -> tuple[str, str]:
    """Namespace and name of the VMI that it moves."""
    return migration["metadata"]["namespace"], str((migration.get("spec") or {}).get("vmiName") or "")


def by_machine(migrations: Iterable[Item]) -> Mapping[tuple[str, str], list[Item]]:
    """Namespace and name of each VMI → the migrations of this name; none of any other."""
    found: defaultdict[tuple[str, str], list[Item]] = defaultdict(list)
    for migration in migrations:
        found[vmi_of(migration)].append(migration)
    return found


def is_moved_by(vmi: Item, migration: Item) -> bool:
    """Whether a migration is of this VMI, and not of one that had its name before."""
    made, since = (item["metadata"].get("creationTimestamp") or "" for item in (migration, vmi))
    return vmi_of(migration) == key(vmi) and made >= since


def migrations_path(namespace: str) -> str:
    """Path of the migrations in a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{segment(namespace)}/virtualmachineinstancemigrations"


def migration_path(migration: Item) -> str:
    """Path of a migration."""
    namespace, name = key(migration)
    return f"{migrations_path(namespace)}/{segment(name)}"


def instance_path(namespace: str, name: str) -> str:
    """Path of an instance."""
    return f"/apis/{API_VERSION}/namespaces/{segment(namespace)}/virtualmachineinstances/{segment(name)}"


def machine_path(namespace: str, name: str) -> str:
    """Path of a VirtualMachine."""
    return f"/apis/{API_VERSION}/namespaces/{segment(namespace)}/virtualmachines/{segment(name)}"


def node_of(vmi: Item) -> str:
    """The node that it runs on, "" for none."""
    return str((vmi.get("status") or {}).get("nodeName") or "")


def stays_alive(vmi: Item) -> bool:
    """Whether it asks to be migrated rather than shut down (DRN-7, C14)."""
    return bool((vmi.get("spec") or {}).get("evictionStrategy") == LIVE_MIGRATE)


def is_kept(vmi: Item) -> bool:
    """Whether its launcher pod must not be evicted: it asks for that, and nobody ends it."""
    return stays_alive(vmi) and not is_ending(vmi)


def is_ending(vmi: Item) -> bool:
    """Whether it has ended for good, or somebody ends it."""
    return is_over(vmi) or bool(vmi["metadata"].get("deletionTimestamp"))


def is_running(vmi: Item) -> bool:
    """Whether it runs, and nobody ends it."""
    return (vmi.get("status") or {}).get("phase") == "Running" and not vmi["metadata"].get("deletionTimestamp")


def is_over(vmi: Item) -> bool:
    """Whether it has ended for good."""
    return (vmi.get("status") or {}).get("phase") in FINISHED


def unable(vmi: Item) -> str:
    """Why it cannot be migrated, "" when it can (OSV-2)."""
    conditions: Iterable[Item] = (vmi.get("status") or {}).get("conditions") or []
    found = next((item for item in conditions if item.get("type") == "LiveMigratable"), {})
    if found.get("status") == "True":
        return ""
    return str(found.get("message") or found.get("reason") or "it has no condition LiveMigratable yet")


def hindrance(vmi: Item) -> str:
    """The same, also of one that does not run, and what helps."""
    if not is_running(vmi):
        phase = (vmi.get("status") or {}).get("phase") or "Pending"
        return f"it is {phase}, and only what is Running can migrate: wait, or shut down {vmi['metadata']['name']}"
    why = unable(vmi)
    return f"{why}: mend that, or shut down virtual machine {vmi['metadata']['name']}" if why else ""


def is_drained(node: Node) -> bool:
    """Whether a drain taint is on the node."""
    return any(is_tainted(node, taint) for taint in DRAIN_TAINTS)


def is_finished(migration: Item) -> bool:
    """Whether nothing comes of it any more."""
    return (migration.get("status") or {}).get("phase") in FINISHED


def has_failed(migration: Item) -> bool:
    """Whether it ended with the VMI where it was."""
    return (migration.get("status") or {}).get("phase") == "Failed"


def source_of(migration: Item) -> str:
    """The node that it leaves, "" until it says so: its VMI is on the other one a moment before it is finished."""
    state = (migration.get("status") or {}).get("migrationState") or {}
    return str(state.get("sourceNode") or "")


def migration_body(name: str, vmi: Item) -> Object:
    """The migration of this name for a VMI, with which it goes."""
    namespace, instance = key(vmi)
    metadata = {"name": name, "namespace": namespace, "labels": {"nodemaintenance.dev/evacuation": "true"}}
    owner = {"apiVersion": API_VERSION, "kind": INSTANCE, "name": instance, "uid": vmi["metadata"]["uid"]}
    return {
        "apiVersion": API_VERSION,
        "kind": MIGRATION,
        "metadata": {**metadata, "ownerReferences": [owner]},
        "spec": {"vmiName": instance},
    }
