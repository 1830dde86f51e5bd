"""Builds and creates VMIs and migrations for tests on a cluster with KubeVirt's CRDs."""

from __future__ import annotations

from typing import Any

from kube.budgets import CREATED_BY_LABEL
from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.virtualization.vmis import API_VERSION, LIVE_MIGRATE, MIGRATION_KIND, VMI_KIND
from tests.workload import Workload, build_pod

MIGRATABLE: Object = {"type": "LiveMigratable", "status": "True"}
NOT_MIGRATABLE: Object = {
    "type": "LiveMigratable",
    "status": "False",
    "reason": "DisksNotLiveMigratable",
    "message": "no disk",
}


def build_vmi(name: str, node: str, *, strategy: str | None = LIVE_MIGRATE, migratable: Object = MIGRATABLE) -> Object:
    """Build a VMI that runs on the node; `migratable` is its condition about live migration."""
    strategy_spec = {"evictionStrategy": strategy} if strategy else {}
    return {
        "apiVersion": API_VERSION,
        "kind": VMI_KIND,
        "metadata": {"name": name},
        "spec": {"domain": {"devices": {}}, **strategy_spec},
        "status": {"phase": "Running", "nodeName": node, "conditions": [migratable]},
    }


def get_instances_path(namespace: str) -> str:
    """Return the API path of a namespace's VMIs."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/virtualmachineinstances"


def get_migrations_path(namespace: str) -> str:
    """Return the API path of a namespace's VirtualMachineInstanceMigrations."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/virtualmachineinstancemigrations"


def build_migration(name: str, vmi_name: str) -> Object:
    """Build a migration as an administrator would create it."""
    return {
        "apiVersion": API_VERSION,
        "kind": MIGRATION_KIND,
        "metadata": {"name": name},
        "spec": {"vmiName": vmi_name},
    }


def create_vmi_with_launcher(workload: Workload, vmi: Object) -> Object:
    """Create a VMI and its virt-launcher pod; return the VMI."""
    created = workload.client.create(get_instances_path(workload.namespace), vmi)
    labels = {"kubevirt.io": "virt-launcher", CREATED_BY_LABEL: created["metadata"]["uid"]}
    name = f"virt-launcher-{created['metadata']['name']}"
    workload.create_pods(workload.namespace, [build_pod(vmi["status"]["nodeName"], name, labels=labels)])
    return created


def patch_vmi_status(client: SyncClient, vmi: Object, **status: Any) -> Object:
    """Patch fields of a VMI's status, which is not a subresource."""
    metadata = vmi["metadata"]
    path = f"{get_instances_path(metadata['namespace'])}/{metadata['name']}"
    return client.patch(path, {"status": status})
