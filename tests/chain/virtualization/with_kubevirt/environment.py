"""The environment in which KubeVirt starts and migrates the VMs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from kube.budgets import budgets_in
from kube.nodes import NODES, node_path
from kube.paths import Object
from kube.virtualization.kubevirt_evacuation import HELD_BACK
from kube.virtualization.virt_launcher_budgets import LABEL
from kube.virtualization.vmis import API_VERSION, LIVE_MIGRATE, MIGRATIONS, migrations_path
from localcluster.cluster import LocalCluster
from localcluster.kubevirt.api import VirtApi
from localcluster.kubevirt.controller import VirtController
from localcluster.product import Product
from tests.chain.virtualization.environment import Stage
from tests.chain.virtualization.migration_watcher import Watcher
from tests.fake_virt_handler import HEARTBEAT, FakeVirtHandler, is_offered
from tests.fake_kubevirt_base import UNABLE, moment
from tests.waiting import between

T = TypeVar("T")
TAINT = "medik8s.io/drain"
TOLD = {"migrations": {"nodeDrainTaintKey": TAINT}}
"""Configuration of KubeVirt with the drain taint of medik8s's NodeMaintenances."""
HASTENED = "kubevirt.io/func-test-ignore-migration-backoff"
OURS = "evacuation-"
"""Name prefix of this product's migrations; KubeVirt uses another one."""


class BesideStage(Stage):
    """The environment of virtualization tests with KubeVirt installed."""

    def __init__(self, cluster: LocalCluster, product: Product, controller: VirtController, api: VirtApi) -> None:
        super().__init__(cluster, product)
        self.controller, self.api, self.handler = controller, api, FakeVirtHandler(self.admin)

    def node(self, name: str = "") -> str:
        """Create a node as in the base class, and wait until VMs can run on it; return its name."""
        name = super().node(name)
        self.until(NODES, name, is_offered)
        return name

    def machine(
        self, name: str, node: str, *, strategy: str = "Always", why: str = "", evict: str = LIVE_MIGRATE
    ) -> str:
        """Create a VM as in the base class; start one with the run strategy Manual, as KubeVirt's API does."""
        super().machine(name, node, strategy=strategy, why=why, evict=evict)
        if strategy == "Manual":
            path = f"/apis/{API_VERSION}/namespaces/{self.space}/virtualmachines/{name}/status"
            self.admin.patch(path, {"status": {"stateChangeRequests": [{"action": "Start"}]}})
        return name

    def _begins_on(self, node: str, metadata: Object, spec: Object) -> tuple[Object, Object]:
        """Return metadata and spec with a preferred node affinity; a required one would prevent the migration."""
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        preferred = {"weight": 100, "preference": {"matchExpressions": [here]}}
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}
        return metadata, {**spec, "affinity": affinity}

    def able(self, name: str) -> None:
        """Make a VMI migratable from now on; its virt-handler reports it."""
        self.admin.patch(f"{self.instances_path}/{name}", {"metadata": {"annotations": {UNABLE: None}}})

    def watcher(self, homes: Mapping[str, str] | None = None) -> Watcher:
        """Return a watcher that ignores waiting migrations.

        KubeVirt creates all migrations at once and delays those above its limit.
        """
        return Watcher(self.admin, homes, HELD_BACK)

    def keeps_node_limit(self, limit: int, most: int) -> bool:
        """Return whether `most` concurrent migrations are KubeVirt's limit, or one more.

        KubeVirt no longer counts a migration from a node when its VMI runs on the target. It has not finished by then.
        """
        return most in (limit, limit + 1)

    def _completed(self) -> set[str]:
        return self.handler.completed

    @contextmanager
    def told(self, configuration: Mapping[str, Any]) -> Iterator[None]:
        """Give KubeVirt only this configuration while the block runs."""
        self.controller.configure(configuration)
        try:
            yield
        finally:
            self.controller.configure(TOLD)

    @contextmanager
    def without_kubevirt(self) -> Iterator[None]:
        """Remove KubeVirt while the block runs; its budgets remain."""
        self.controller.stop()
        self.controller.revoke()
        try:
            yield
        finally:
            self.controller.declare(TOLD)
            self.controller.start()

    def kill(self, chance: Random) -> None:
        """Kill and restart KubeVirt's virt-controller, or a process as in the base class."""
        if chance.random() < 0.5:
            self.controller.stop()
            self.controller.start()
        else:
            super().kill(chance)

    def beat(self, node: str) -> None:
        """Write a virt-handler heartbeat for the node, upon which KubeVirt evaluates the node again."""
        noted = {"annotations": {HEARTBEAT: moment()}}
        self.admin.patch(node_path(node), {"metadata": noted})

    def by_beats(self, node: str, wait: Callable[[], T], seconds: float = 60.0) -> T:
        """Return what `wait` returns; write a heartbeat at first and whenever `wait` raises `TimeoutError`.

        KubeVirt may not have the object in its cache at the first heartbeat. A virt-handler writes one each minute.
        """
        return between(lambda: self.beat(node), wait, seconds)

    def hasten(self, migration: str) -> None:
        """Let KubeVirt start this migration without a backoff, as its own functional tests do."""
        path = f"{migrations_path(self.space)}/{migration}"
        self.admin.patch(path, {"metadata": {"annotations": {HASTENED: ""}}})

    @property
    def budgets_path(self) -> str:
        """Return the API path of the namespace's budgets."""
        return budgets_in(self.space)

    def ours(self) -> list[str]:
        """Return the names of this product's migrations and budgets."""
        migrations = [item["metadata"]["name"] for item in self.admin.list(MIGRATIONS)["items"]]
        budgets = self.admin.list("/apis/policy/v1/poddisruptionbudgets", labels=LABEL)["items"]
        return [name for name in migrations if name.startswith(OURS)] + [item["metadata"]["name"] for item in budgets]
