"""Helpers that create virtual machines with the objects and statuses that KubeVirt's controllers would write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kube.budgets import CREATED_BY_LABEL
from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.virtualization.vmis import API_VERSION, LIVE_MIGRATE, VM_KIND, build_migrations_path
from localcluster.cluster import LocalCluster
from localcluster.kubevirt import crds
from tests.kubevirt import MIGRATABLE, NOT_MIGRATABLE, build_migration, build_vmi, get_instances_path
from tests.workload import build_pod

VM_NAMESPACE = "machines"
KUBEVIRT_PLURALS = ("virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations", "kubevirts")
MIGRATION_NAME = "evacuation-7e7a2e7c-9a0a-4d9f-a1d4-6d0f6f6e2f15-1"


@contextmanager
def install_kubevirt_crds(cluster: LocalCluster) -> Iterator[None]:
    """Install KubeVirt's CRDs without its controllers; delete the CRDs and all virtual machines afterwards."""
    crds.install_crds(cluster)
    cluster.kubectl("create", "namespace", VM_NAMESPACE, check=False)
    yield
    cluster.kubectl("delete", "crd", *(f"{plural}.{crds.GROUP}" for plural in KUBEVIRT_PLURALS))


def create_vms(admin: SyncClient, node: str) -> None:
    """Create four VMs on `node`: one migrating, one that cannot be migrated, and two without an eviction strategy.

    After a shutdown, KubeVirt restarts the VM `plain`, but not the VM `manual`.
    """
    create_vm(admin, node, "live", "Always")
    create_vm(admin, node, "stuck", "Always", migratable_condition=NOT_MIGRATABLE)
    create_vm(admin, node, "plain", "RerunOnFailure", eviction_strategy=None)
    create_vm(admin, node, "manual", "Manual", eviction_strategy=None)
    migration = admin.create(build_migrations_path(VM_NAMESPACE), build_migration(MIGRATION_NAME, "live"))
    state = {"migrationUid": migration["metadata"]["uid"], "sourceNode": node, "targetNode": "node-3"}
    admin.patch(
        f"{build_migrations_path(VM_NAMESPACE)}/{MIGRATION_NAME}/status",
        {"status": {"phase": "Running", "migrationState": state}},
    )
    admin.patch(f"{get_instances_path(VM_NAMESPACE)}/live", {"status": {"migrationState": state}})


def create_vm(
    admin: SyncClient,
    node: str,
    name: str,
    run_strategy: str,
    *,
    eviction_strategy: str | None = LIVE_MIGRATE,
    migratable_condition: Object = MIGRATABLE,
) -> None:
    """Create a VirtualMachine, its VMI and its virt-launcher pod on `node`."""
    spec = {"runStrategy": run_strategy, "template": {"spec": {"domain": {"devices": {}}}}}
    body = {"apiVersion": API_VERSION, "kind": VM_KIND, "metadata": {"name": name}, "spec": spec}
    vm = admin.create(f"/apis/{API_VERSION}/namespaces/{VM_NAMESPACE}/virtualmachines", body)
    instance = build_vmi(name, node, strategy=eviction_strategy, migratable=migratable_condition)
    instance["metadata"]["ownerReferences"] = [build_owner_reference(vm)]
    create_launcher_pod(admin, node, admin.create(get_instances_path(VM_NAMESPACE), instance), f"virt-launcher-{name}")


def create_launcher_pod(admin: SyncClient, node: str, instance: Object, name: str) -> None:
    """Create a virt-launcher pod for a VMI on `node`."""
    labels = {"kubevirt.io": "virt-launcher", CREATED_BY_LABEL: instance["metadata"]["uid"]}
    pod = build_pod(node, name, labels=labels)
    pod["metadata"]["ownerReferences"] = [build_owner_reference(instance)]
    admin.create(f"/api/v1/namespaces/{VM_NAMESPACE}/pods", pod)


def build_owner_reference(owner: Object) -> Object:
    """Build the owner reference of an object that is controlled by `owner`."""
    metadata = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {**reference, "controller": True}


def delete_vms(admin: SyncClient) -> None:
    """Delete all VMs and migrations in the namespace, and delete their pods without a grace period."""
    for plural in KUBEVIRT_PLURALS[:3]:
        admin.run(admin.api.request("DELETE", f"/apis/{API_VERSION}/namespaces/{VM_NAMESPACE}/{plural}"))
    pods_path = f"/api/v1/namespaces/{VM_NAMESPACE}/pods"
    admin.run(admin.api.request("DELETE", pods_path, query={"gracePeriodSeconds": "0"}))
