"""Test environment in which KubeVirt starts and migrates the VMs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from kube.budgets import build_namespace_budgets_path
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from kube.virtualization.kubevirt_evacuation import PENDING_PHASES
from kube.virtualization.virt_launcher_budgets import VMI_UID_LABEL
from kube.virtualization.vmis import API_VERSION, LIVE_MIGRATE, MIGRATIONS_PATH, build_migrations_path
from localcluster.cluster import LocalCluster
from localcluster.kubevirt.control_plane import VirtApi, VirtController
from localcluster.product import Product
from localcluster.simulators.kubevirt import NOT_MIGRATABLE_ANNOTATION, format_now
from localcluster.simulators.virt_handler import HEARTBEAT_ANNOTATION, FakeVirtHandler, is_schedulable
from localcluster.waiting import retry_action
from tests.chain.virtualization.environment import VirtualizationEnvironment
from tests.chain.virtualization.migration_watcher import MigrationWatcher

T = TypeVar("T")
TAINT_KEY = "medik8s.io/drain"
KUBEVIRT_CONFIGURATION = {"migrations": {"nodeDrainTaintKey": TAINT_KEY}}
"""KubeVirt configuration whose drain taint is the one of medik8s's NodeMaintenances."""
IGNORE_BACKOFF_ANNOTATION = "kubevirt.io/func-test-ignore-migration-backoff"
MIGRATION_NAME_PREFIX = "evacuation-"
"""Name prefix of the migrations that this product creates; KubeVirt uses a different prefix."""


class KubeVirtEnvironment(VirtualizationEnvironment):
    """A virtualization environment with KubeVirt installed."""

    def __init__(self, cluster: LocalCluster, product: Product, controller: VirtController, api: VirtApi) -> None:
        super().__init__(cluster, product)
        self.controller, self.api, self.handler = controller, api, FakeVirtHandler(self.client)

    def create_node(self, name: str = "") -> str:
        """Create a node as in the base class, and wait until VMs can run on it; return its name."""
        name = super().create_node(name)
        self.wait_for_object_state(NODES_PATH, name, is_schedulable)
        return name

    def create_vm(
        self,
        name: str,
        node: str,
        *,
        run_strategy: str = "Always",
        unmigratable_reason: str = "",
        eviction_strategy: str = LIVE_MIGRATE,
    ) -> str:
        """Create a VM as in the base class; if its run strategy is Manual, start it as KubeVirt's API does."""
        super().create_vm(
            name,
            node,
            run_strategy=run_strategy,
            unmigratable_reason=unmigratable_reason,
            eviction_strategy=eviction_strategy,
        )
        if run_strategy == "Manual":
            path = f"/apis/{API_VERSION}/namespaces/{self.vm_namespace}/virtualmachines/{name}/status"
            self.client.patch(path, {"status": {"stateChangeRequests": [{"action": "Start"}]}})
        return name

    def _set_first_node_of_vmi(self, node: str, metadata: Object, spec: Object) -> tuple[Object, Object]:
        """Return metadata, and the spec with a preferred node affinity; a required one would prevent migrations."""
        hostname_term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        preferred = {"weight": 100, "preference": {"matchExpressions": [hostname_term]}}
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}
        return metadata, {**spec, "affinity": affinity}

    def make_migratable(self, name: str) -> None:
        """Make a VMI migratable; its node's virt-handler then sets the VMI's condition `LiveMigratable`."""
        self.client.patch(f"{self.vmis_path}/{name}", {"metadata": {"annotations": {NOT_MIGRATABLE_ANNOTATION: None}}})

    def create_watcher(self, node_by_vmi: Mapping[str, str] | None = None) -> MigrationWatcher:
        """Return a watcher that ignores waiting migrations.

        KubeVirt creates all migrations immediately, and delays the migrations above its limit.
        """
        return MigrationWatcher(self.client, node_by_vmi, PENDING_PHASES)

    def reaches_node_limit(self, limit: int, max_concurrent: int) -> bool:
        """Return whether the highest number of concurrent migrations from a node is KubeVirt's limit or limit + 1.

        KubeVirt no longer counts a migration whose VMI already runs on the target node, even if it is unfinished.
        """
        return max_concurrent in (limit, limit + 1)

    def _get_completed_pods(self) -> set[str]:
        return self.handler.completed

    @contextmanager
    def configure_kubevirt(self, configuration: Mapping[str, Any]) -> Iterator[None]:
        """Replace KubeVirt's configuration while the `with` block runs."""
        self.controller.configure(configuration)
        try:
            yield
        finally:
            self.controller.configure(KUBEVIRT_CONFIGURATION)

    @contextmanager
    def remove_kubevirt(self) -> Iterator[None]:
        """Remove KubeVirt while the `with` block runs; the PodDisruptionBudgets that KubeVirt created remain."""
        self.controller.stop()
        self.controller.delete_kubevirt()
        try:
            yield
        finally:
            self.controller.create_kubevirt(KUBEVIRT_CONFIGURATION)
            self.controller.start()

    def kill_and_restart_random_process(self, rng: Random) -> None:
        """Kill and restart either KubeVirt's virt-controller, or the functions or the delivery as in the base class."""
        if rng.random() < 0.5:
            self.controller.stop()
            self.controller.start()
        else:
            super().kill_and_restart_random_process(rng)

    def write_heartbeat(self, node: str) -> None:
        """Write a virt-handler heartbeat to the node, so that KubeVirt evaluates the node again."""
        metadata = {"annotations": {HEARTBEAT_ANNOTATION: format_now()}}
        self.client.patch(build_node_path(node), {"metadata": metadata})

    def wait_with_heartbeats(self, node: str, wait: Callable[[], T], timeout: float = 60.0) -> T:
        """Write a virt-handler heartbeat to the node and return the result of `wait`; repeat after each `TimeoutError`.

        KubeVirt may not have the object in its cache at the first heartbeat. A real virt-handler writes a heartbeat
        every minute.
        """
        return retry_action(lambda: self.write_heartbeat(node), wait, timeout)

    def skip_migration_backoff(self, migration_name: str) -> None:
        """Make KubeVirt start this migration without a backoff, with the method of KubeVirt's own functional tests."""
        path = f"{build_migrations_path(self.vm_namespace)}/{migration_name}"
        self.client.patch(path, {"metadata": {"annotations": {IGNORE_BACKOFF_ANNOTATION: ""}}})

    @property
    def budgets_path(self) -> str:
        """Return the API path of the PodDisruptionBudgets in the VMs' namespace."""
        return build_namespace_budgets_path(self.vm_namespace)

    def list_product_objects(self) -> list[str]:
        """Return the names of the migrations and PodDisruptionBudgets that this product created."""
        migrations = [migration["metadata"]["name"] for migration in self.client.list(MIGRATIONS_PATH)["items"]]
        budgets = self.client.list("/apis/policy/v1/poddisruptionbudgets", label_selector=VMI_UID_LABEL)["items"]
        return [name for name in migrations if name.startswith(MIGRATION_NAME_PREFIX)] + [
            budget["metadata"]["name"] for budget in budgets
        ]
