"""Helpers that create virtual machines without KubeVirt: they write what KubeVirt's controllers would have written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kube.budgets import CREATED_BY
from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.virtualization.vmis import API_VERSION, LIVE_MIGRATE, MACHINE, migrations_path
from localcluster.cluster import LocalCluster
from localcluster.kubevirt import crds
from tests.kubevirt import ABLE, UNABLE, instances, migration, vmi
from tests.workload import pod_on

SPACE = "machines"
KINDS = ("virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations", "kubevirts")
MOVING = "evacuation-7e7a2e7c-9a0a-4d9f-a1d4-6d0f6f6e2f15-1"


@contextmanager
def kinds(cluster: LocalCluster) -> Iterator[None]:
    """Install KubeVirt's CRDs without its controllers; delete the CRDs and all virtual machines afterwards."""
    crds.install(cluster)
    cluster.kubectl("create", "namespace", SPACE, check=False)
    yield
    cluster.kubectl("delete", "crd", *(f"{kind}.{crds.GROUP}" for kind in KINDS))


def each_kind(admin: Cluster, node: str) -> None:
    """Create four VMs on `node`: a migrating one, one that cannot be migrated, and two without an eviction strategy.

    Of the last two, KubeVirt restarts `plain` after a shutdown, and it does not restart `manual`.
    """
    machine(admin, node, "live", "Always")
    machine(admin, node, "stuck", "Always", able=UNABLE)
    machine(admin, node, "plain", "RerunOnFailure", strategy=None)
    machine(admin, node, "manual", "Manual", strategy=None)
    made = admin.create(migrations_path(SPACE), migration(MOVING, "live"))
    state = {"migrationUid": made["metadata"]["uid"], "sourceNode": node, "targetNode": "node-3"}
    admin.patch(f"{migrations_path(SPACE)}/{MOVING}/status", {"status": {"phase": "Running", "migrationState": state}})
    admin.patch(f"{instances(SPACE)}/live", {"status": {"migrationState": state}})


def machine(
    admin: Cluster, node: str, name: str, runs: str, *, strategy: str | None = LIVE_MIGRATE, able: Object = ABLE
) -> None:
    """Create a VirtualMachine, its VMI and its virt-launcher pod on `node`."""
    spec = {"runStrategy": runs, "template": {"spec": {"domain": {"devices": {}}}}}
    body = {"apiVersion": API_VERSION, "kind": MACHINE, "metadata": {"name": name}, "spec": spec}
    owner = admin.create(f"/apis/{API_VERSION}/namespaces/{SPACE}/virtualmachines", body)
    instance = vmi(name, node, strategy=strategy, able=able)
    instance["metadata"]["ownerReferences"] = [reference(owner)]
    launch(admin, node, admin.create(instances(SPACE), instance), f"virt-launcher-{name}")


def launch(admin: Cluster, node: str, instance: Object, name: str) -> None:
    """Create a virt-launcher pod of a VMI on `node`."""
    labels = {"kubevirt.io": "virt-launcher", CREATED_BY: instance["metadata"]["uid"]}
    pod = pod_on(node, name, labels=labels)
    pod["metadata"]["ownerReferences"] = [reference(instance)]
    admin.create(f"/api/v1/namespaces/{SPACE}/pods", pod)


def reference(item: Object) -> Object:
    """Build the owner reference to a controller."""
    metadata = item["metadata"]
    known = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**known, "controller": True}


def clear(admin: Cluster) -> None:
    """Delete all VMs and migrations in the namespace, and delete their pods without a grace period."""
    for kind in KINDS[:3]:
        admin.run(admin.api.request("DELETE", f"/apis/{API_VERSION}/namespaces/{SPACE}/{kind}"))
    pods = f"/api/v1/namespaces/{SPACE}/pods"
    admin.run(admin.api.request("DELETE", pods, query={"gracePeriodSeconds": "0"}))
