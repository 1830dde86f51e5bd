"""Test environment for virtualization: creates VirtualMachines and VMIs, and watches them during drains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from random import Random
from subprocess import CompletedProcess
from typing import Any

from kube.client.api import get_or_none
from kube.nodes import build_node_path
from kube.paths import Object
from kube.virtualization.migration_claims import LEASE_PATH
from kube.virtualization.vmis import (
    API_VERSION,
    LIVE_MIGRATE,
    MIGRATIONS_PATH,
    VMI_KIND,
    VMIS_PATH,
    build_migrations_path,
)
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.simulators.kubevirt import (
    BOOT_ANNOTATION,
    FAILING_ANNOTATION,
    FIRST_NODE_ANNOTATION,
    HOLDING_ANNOTATION,
    NOT_MIGRATABLE_ANNOTATION,
    VIRTUAL_MACHINES_PATH,
    build_conditions,
    get_object_path,
    get_phase,
)
from localcluster.waiting import wait_for_collection
from tests.chain.environment import EventChainEnvironment
from tests.chain.virtualization.migration_watcher import MigrationWatcher

TIMEOUT_SECONDS = 180.0
VIRT_LAUNCHER_PREFIX = "virt-launcher-"


class VirtualizationEnvironment(EventChainEnvironment):
    """A chain environment with additional methods for VMs, VMIs and migrations."""

    def __init__(self, cluster: LocalCluster, product: Product) -> None:
        super().__init__(cluster, product)
        self.vm_namespace = self.create_namespace()

    def create_vm(
        self,
        name: str,
        node: str,
        *,
        run_strategy: str = "Always",
        unmigratable_reason: str = "",
        eviction_strategy: str = LIVE_MIGRATE,
    ) -> str:
        """Create a VirtualMachine that starts on the node; return its name.

        Args:
            name: The VirtualMachine's name.
            node: The node on which the VirtualMachine first starts.
            run_strategy: The VirtualMachine's run strategy.
            unmigratable_reason: The reason why the VMI cannot be migrated, or "" if the VMI can be migrated.
            eviction_strategy: The eviction strategy, or "" for none.
        """
        annotations_field = {
            "annotations": {NOT_MIGRATABLE_ANNOTATION: unmigratable_reason} if unmigratable_reason else {}
        }
        strategy_field = {"evictionStrategy": eviction_strategy} if eviction_strategy else {}
        metadata, spec = self._set_first_node_of_vmi(
            node, {"name": name}, {"domain": {"devices": {}}, **strategy_field}
        )
        template = {"metadata": annotations_field, "spec": spec}
        body = {
            "apiVersion": API_VERSION,
            "kind": "VirtualMachine",
            "metadata": metadata,
            "spec": {"runStrategy": run_strategy, "template": template},
        }
        self.client.create(self.vms_path, body)
        return name

    def wait_until_stopped(self, name: str) -> Object:
        """Wait until the VirtualMachine's status is Stopped, and return the VirtualMachine."""
        return self.wait_for_object_state(
            self.vms_path, name, lambda vm: (vm.get("status") or {}).get("printableStatus") == "Stopped"
        )

    def start_vm(self, name: str) -> None:
        """Start a stopped VirtualMachine with the same change that KubeVirt's API makes for `virtctl start`."""
        self.client.patch(f"{self.vms_path}/{name}", {"spec": {"runStrategy": "Always"}})

    def _set_first_node_of_vmi(self, node: str, metadata: Object, spec: Object) -> tuple[Object, Object]:
        """Return metadata (of a VM or VMI) and VMI spec, changed so that the VMI first starts on this node."""
        return {**metadata, "annotations": {FIRST_NODE_ANNOTATION: node}}, spec

    def create_vmi(self, name: str, node: str) -> str:
        """Create a VMI that is not owned by a VM; return its name."""
        metadata, spec = self._set_first_node_of_vmi(node, {"name": name}, {"domain": {"devices": {}}})
        body = {"apiVersion": API_VERSION, "kind": VMI_KIND, "metadata": metadata, "spec": spec}
        self.client.create(self.vmis_path, body)
        return name

    def get_vmis_by_name(self) -> dict[str, Object]:
        """Return a map from VMI name to VMI, in the current state."""
        return {vmi["metadata"]["name"]: vmi for vmi in self.client.list(self.vmis_path)["items"]}

    @property
    def vms_path(self) -> str:
        """Return the API path of the VMs."""
        return f"/apis/{API_VERSION}/namespaces/{self.vm_namespace}/virtualmachines"

    @property
    def vmis_path(self) -> str:
        """Return the API path of the VMIs."""
        return f"/apis/{API_VERSION}/namespaces/{self.vm_namespace}/virtualmachineinstances"

    def wait_for_vmis(
        self, predicate: Callable[[dict[str, Object]], bool], timeout: float = TIMEOUT_SECONDS
    ) -> dict[str, Object]:
        """Wait until `predicate` is true for the dictionary from VMI name to VMI, and return the dictionary."""
        return wait_for_collection(self.client, self.vmis_path, predicate, timeout)

    def wait_until_running(self, *names: str) -> dict[str, str]:
        """Wait until these VMIs are running; return the annotation about the guest's last boot by VMI name."""
        vmis = self.wait_for_vmis(lambda vmis_by_name: all(is_running(vmis_by_name.get(name)) for name in names))
        return {name: get_boot(vmis[name]) for name in names}

    def wait_until_rebooted(self, previous_boots: Mapping[str, str], *names: str) -> dict[str, Object]:
        """Wait until these VMIs have rebooted since `previous_boots` and are running; return the VMIs by name."""

        def have_rebooted(vmis: dict[str, Object]) -> bool:
            return all(is_running(vmis.get(name)) and get_boot(vmis[name]) != previous_boots[name] for name in names)

        return self.wait_for_vmis(have_rebooted)

    def make_migratable(self, name: str) -> None:
        """Make a VMI migratable, and set its condition `LiveMigratable` accordingly."""
        status = {"conditions": build_conditions({"metadata": {}})}
        patch = {"metadata": {"annotations": {NOT_MIGRATABLE_ANNOTATION: None}}, "status": status}
        self.client.patch(f"{self.vmis_path}/{name}", patch)

    def set_migration_failure(self, *node_names: str, is_enabled: bool = True) -> None:
        """Make migrations to these nodes fail, or allow them again if `is_enabled` is false."""
        self._set_annotation(FAILING_ANNOTATION, node_names, is_set=is_enabled)

    @contextmanager
    def hold_migrations(self, *node_names: str) -> Iterator[None]:
        """Prevent migrations to these nodes from finishing while the block runs."""
        self._set_annotation(HOLDING_ANNOTATION, node_names, is_set=True)
        yield
        self._set_annotation(HOLDING_ANNOTATION, node_names, is_set=False)

    def wait_for_running_migrations(self, *vmi_names: str) -> dict[str, Object]:
        """Wait until each of these VMIs has a Running migration, and return a map from VMI name to migration."""

        def select_running(migrations: dict[str, Object]) -> dict[str, Object]:
            return {
                migration["spec"]["vmiName"]: migration
                for migration in migrations.values()
                if get_phase(migration) == "Running"
            }

        path = build_migrations_path(self.vm_namespace)
        return select_running(
            wait_for_collection(
                self.client,
                path,
                lambda migrations_by_name: set(vmi_names) <= set(select_running(migrations_by_name)),
                TIMEOUT_SECONDS,
            )
        )

    def delete_migration(self, migration: Object) -> None:
        """Delete a migration as a user would."""
        self.client.delete(
            get_object_path(migration, "virtualmachineinstancemigrations"), uid=migration["metadata"]["uid"]
        )

    def delete_vm(self, name: str) -> None:
        """Delete a VM as a user would; this also deletes the VM's VMI and migrations."""
        path = f"{self.vms_path}/{name}"
        self.client.delete(path, uid=self.client.get(path)["metadata"]["uid"])

    def _set_annotation(self, annotation: str, names: Iterable[str], *, is_set: bool) -> None:
        """Set or remove this annotation on the nodes."""
        patch = {"metadata": {"annotations": {annotation: "" if is_set else None}}}
        self.client.gather_all(*(self.client.api.patch(build_node_path(name), patch) for name in names))

    def kill_and_restart_random_process(self, rng: Random) -> None:
        """Kill either the functions or the delivery with SIGKILL, and restart the killed process."""
        if rng.random() < 0.7:
            self.product.kill_functions()
            self.product.start_functions()
        else:
            self.product.kill_delivery()
            self.product.start_delivery()

    def list_protected_vmis(self) -> set[str]:
        """Return the names of the VMIs that have a PodDisruptionBudget."""
        budgets = self.client.list(f"/apis/policy/v1/namespaces/{self.vm_namespace}/poddisruptionbudgets")["items"]
        return {owner["name"] for budget in budgets for owner in budget["metadata"]["ownerReferences"]}

    def evict_pod(self, pod_name: str) -> Object:
        """Evict a pod in the VMs' namespace. Raises `ApiError` if the API server rejects the eviction."""
        return self.client.create(self._build_eviction_path(pod_name), self._build_eviction(pod_name))

    def evict_by_kubectl(self, pod: str) -> CompletedProcess[str]:
        """Request a pod's eviction in the VMs' namespace with kubectl, and return the completed process."""
        body = json.dumps(self._build_eviction(pod))
        return self.cluster.kubectl(
            "create", "--raw", self._build_eviction_path(pod), "-f", "-", input=body, check=False
        )

    def _build_eviction(self, pod: str) -> Object:
        metadata = {"name": pod, "namespace": self.vm_namespace}
        return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}

    def _build_eviction_path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self.vm_namespace}/pods/{pod}/eviction"

    def list_budget_creators(self, budget_name: str) -> list[str]:
        """Return the user name of each request that created a PodDisruptionBudget with this name."""
        return [
            entry["user"]["username"]
            for entry in self.read_audit_log()
            if (entry["verb"], entry["objectRef"]["resource"]) == ("create", "poddisruptionbudgets")
            and entry["objectRef"].get("name") == budget_name
            and entry["responseStatus"]["code"] == HTTPStatus.CREATED
        ]

    @contextmanager
    def create_kubevirt_object(self) -> Iterator[None]:
        """Create the KubeVirt object, which marks KubeVirt as installed, and delete it after the `with` block."""
        path = f"/apis/{API_VERSION}/namespaces/{self.vm_namespace}/kubevirts"
        body = {"apiVersion": API_VERSION, "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
        created = self.client.create(path, body)
        yield
        self.client.delete(f"{path}/kubevirt", uid=created["metadata"]["uid"])

    def count_migrations_by_vmi(self) -> Counter[str]:
        """Return a map from VMI name to number of its migrations."""
        return Counter(migration["spec"]["vmiName"] for migration in self.client.list(MIGRATIONS_PATH)["items"])

    def create_watcher(self, node_by_vmi: Mapping[str, str] | None = None) -> MigrationWatcher:
        """Return a watcher of all migrations; `node_by_vmi` maps each VMI to the node that the VMI leaves."""
        return MigrationWatcher(self.client, node_by_vmi)

    def reaches_node_limit(self, limit: int, max_concurrent: int) -> bool:
        """Return whether the highest number of concurrent migrations from a node is exactly the limit."""
        return max_concurrent == limit

    def list_shut_down_vms(self, evictions: AuditLog) -> set[str]:
        """Return the names of the VMs whose running virt-launcher pod was evicted."""
        successful_evictions = [entry for entry in evictions.list_evictions() if entry["responseStatus"]["code"] < 300]
        names = {entry["objectRef"]["name"] for entry in successful_evictions} - self._get_completed_pods()
        return {get_vm_name(name) for name in names if name.startswith(VIRT_LAUNCHER_PREFIX)}

    def _get_completed_pods(self) -> set[str]:
        """Return the names of the virt-launcher pods that had completed before they were evicted."""
        return set()

    def delete_all_objects(self) -> None:
        """Delete all objects that tests have created: VMs, VMIs, migrations and the Lease with the migration slots."""
        for plural, path in (("virtualmachines", VIRTUAL_MACHINES_PATH), ("virtualmachineinstances", VMIS_PATH),
                             ("virtualmachineinstancemigrations", MIGRATIONS_PATH)):  # fmt: skip
            for resource in self.client.list(path)["items"]:
                self.client.run(get_or_none(self.client.api.request("DELETE", get_object_path(resource, plural))))
        self.client.run(get_or_none(self.client.api.request("DELETE", LEASE_PATH)))
        wait_for_collection(self.client, self.vmis_path, lambda vmis: not vmis, TIMEOUT_SECONDS)

    def set_taints(self, node: str, *taints: Object) -> None:
        """Replace the node's taints, as an administrator might do by hand."""
        self.client.patch(build_node_path(node), {"spec": {"taints": list(taints)}})


def get_vm_name(pod_name: str) -> str:
    """Return the name of the VM to which a virt-launcher pod belongs."""
    return pod_name.removeprefix(VIRT_LAUNCHER_PREFIX).rpartition("-")[0]


def is_running(instance: Object | None) -> bool:
    """Return whether the VMI is Running."""
    return bool(instance and (instance.get("status") or {}).get("phase") == "Running")


def get_boot(instance: Object) -> str:
    """Return the value of the annotation that contains the time and the virt-launcher pod of the guest's last boot."""
    return str(instance["metadata"]["annotations"][BOOT_ANNOTATION])


def get_node_name(instance: Object) -> str:
    """Return the name of the node on which the VMI runs, or "" for a VMI without a node."""
    return str((instance.get("status") or {}).get("nodeName") or "")


def get_blocking_details_by_pod(maintenance: Object) -> dict[str, Any]:
    """Return a map from pod name to reason and message for each blocked pod in the maintenance's status."""
    return {
        blocked_pod["name"]: (blocked_pod["reason"], blocked_pod["message"])
        for blocked_pod in maintenance.get("status", {}).get("blockedPods") or []
    }
