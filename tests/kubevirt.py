"""VMIs and migrations for tests on a cluster with KubeVirt's CRDs."""

from __future__ import annotations

from typing import Any

from kube.budgets import CREATED_BY
from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.virtualization.vmis import API_VERSION, INSTANCE, LIVE_MIGRATE, MIGRATION
from tests.workload import Workload, pod_on

ABLE: Object = {"type": "LiveMigratable", "status": "True"}
UNABLE: Object = {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "no disk"}


def vmi(name: str, node: str, *, strategy: str | None = LIVE_MIGRATE, able: Object = ABLE) -> Object:
    """Build a VMI that runs on a node."""
    chosen = {"evictionStrategy": strategy} if strategy else {}
    return {
        "apiVersion": API_VERSION,
        "kind": INSTANCE,
        "metadata": {"name": name},
        "spec": {"domain": {"devices": {}}, **chosen},
        "status": {"phase": "Running", "nodeName": node, "conditions": [able]},
    }


def instances(namespace: str) -> str:
    """Return the API path of a namespace's VMIs."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/virtualmachineinstances"


def migrations(namespace: str) -> str:
    """Return the API path of a namespace's VirtualMachineInstanceMigrations."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/virtualmachineinstancemigrations"


def migration(name: str, of: str) -> Object:
    """Build a migration as an administrator creates it."""
    return {"apiVersion": API_VERSION, "kind": MIGRATION, "metadata": {"name": name}, "spec": {"vmiName": of}}


def launched(work: Workload, body: Object) -> Object:
    """Create a VMI and its virt-launcher pod; return the VMI."""
    made = work.admin.create(instances(work.namespace), body)
    labels = {"kubevirt.io": "virt-launcher", CREATED_BY: made["metadata"]["uid"]}
    name = f"virt-launcher-{made['metadata']['name']}"
    work.put(work.namespace, [pod_on(body["status"]["nodeName"], name, labels=labels)])
    return made


def edit(admin: Cluster, item: Object, **status: Any) -> Object:
    """Write fields of a VMI's status, which is not a subresource."""
    metadata = item["metadata"]
    path = f"{instances(metadata['namespace'])}/{metadata['name']}"
    return admin.patch(path, {"status": status})
