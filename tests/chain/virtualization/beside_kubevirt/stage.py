"""The stage where KubeVirt starts and moves machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from kube.budgets import budgets_in
from kube.nodes import NODES, node_path
from kube.paths import Object
from kube.virtualization.kubevirt_evacuation import HELD_BACK
from kube.virtualization.launcher_budgets import LABEL
from kube.virtualization.machines import API_VERSION, LIVE_MIGRATE, MIGRATIONS, migrations_path
from localcluster.cluster import LocalCluster
from localcluster.kubevirt.api import VirtApi
from localcluster.kubevirt.controller import VirtController
from localcluster.product import Product
from tests.chain.virtualization.stage import Stage
from tests.chain.virtualization.watching import Watcher
from tests.fake_virt_handler import HEARTBEAT, FakeVirtHandler, is_offered
from tests.virt_actor import UNABLE, moment
from tests.waiting import between

T = TypeVar("T")
TAINT = "medik8s.io/drain"
TOLD = {"migrations": {"nodeDrainTaintKey": TAINT}}
"""Configuration by which KubeVirt knows the taint of NodeMaintenances of medik8s."""
HASTENED = "kubevirt.io/func-test-ignore-migration-backoff"
OURS = "evacuation-"
"""Beginning of the names of our migrations; KubeVirt's is another one."""


class BesideStage(Stage):
    """What a test of virtual machines acts on beside KubeVirt."""

    def __init__(self, cluster: LocalCluster, product: Product, controller: VirtController, api: VirtApi) -> None:
        super().__init__(cluster, product)
        self.controller, self.api, self.handler = controller, api, FakeVirtHandler(self.admin)

    def node(self, name: str = "") -> str:
        """As there, once machines may run on it."""
        name = super().node(name)
        self.until(NODES, name, is_offered)
        return name

    def machine(
        self, name: str, node: str, *, strategy: str = "Always", why: str = "", evict: str = LIVE_MIGRATE
    ) -> str:
        """As there; one that is started by hand is started, as KubeVirt's API would do it."""
        super().machine(name, node, strategy=strategy, why=why, evict=evict)
        if strategy == "Manual":
            path = f"/apis/{API_VERSION}/namespaces/{self.space}/virtualmachines/{name}/status"
            self.admin.patch(path, {"status": {"stateChangeRequests": [{"action": "Start"}]}})
        return name

    def _begins_on(self, node: str, metadata: Object, spec: Object) -> tuple[Object, Object]:
        """It prefers the node; required of it, it could not migrate."""
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        preferred = {"weight": 100, "preference": {"matchExpressions": [here]}}
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}
        return metadata, {**spec, "affinity": affinity}

    def able(self, name: str) -> None:
        """Have an instance be one that can be migrated from now on; its virt-handler says so."""
        self.admin.patch(f"{self.instances_path}/{name}", {"metadata": {"annotations": {UNABLE: None}}})

    def watcher(self, homes: Mapping[str, str] | None = None) -> Watcher:
        """As there: KubeVirt creates all migrations at once, and holds back those that are too many."""
        return Watcher(self.admin, homes, HELD_BACK)

    def kept(self, limit: int, most: int) -> bool:
        """As there: the limit is KubeVirt's, whose controllers read caches and may begin one more at once."""
        return most in (limit, limit + 1)

    def _completed(self) -> set[str]:
        return self.handler.completed

    @contextmanager
    def told(self, configuration: Mapping[str, Any]) -> Iterator[None]:
        """Have KubeVirt be told this, and nothing else, while the block runs."""
        self.controller.configure(configuration)
        try:
            yield
        finally:
            self.controller.configure(TOLD)

    @contextmanager
    def without_kubevirt(self) -> Iterator[None]:
        """Have KubeVirt be removed while the block runs; its budgets stay."""
        self.controller.stop()
        self.controller.revoke()
        try:
            yield
        finally:
            self.controller.declare(TOLD)
            self.controller.start()

    def kill(self, chance: Random) -> None:
        """As there, or KubeVirt's virt-controller."""
        if chance.random() < 0.5:
            self.controller.stop()
            self.controller.start()
        else:
            super().kill(chance)

    def beat(self, node: str) -> None:
        """Have a node's virt-handler give a sign of life, upon which KubeVirt looks at the node again."""
        noted = {"annotations": {HEARTBEAT: moment()}}
        self.admin.patch(node_path(node), {"metadata": noted})

    def by_beats(self, node: str, wait: Callable[[], T], seconds: float = 60.0) -> T:
        """What `wait` gives, between signs of life that are given whenever it raises `TimeoutError`.

        KubeVirt may not know yet at the first what it is to look at; a virt-handler gives one each minute.
        """
        return between(lambda: self.beat(node), wait, seconds)

    def hasten(self, migration: str) -> None:
        """Have KubeVirt not wait before it begins this one, as its own tests have it."""
        path = f"{migrations_path(self.space)}/{migration}"
        self.admin.patch(path, {"metadata": {"annotations": {HASTENED: ""}}})

    @property
    def budgets_path(self) -> str:
        """Path of the budgets."""
        return budgets_in(self.space)

    def ours(self) -> list[str]:
        """What is there of ours: migrations and budgets, by name."""
        migrations = [item["metadata"]["name"] for item in self.admin.list(MIGRATIONS)["items"]]
        budgets = self.admin.list("/apis/policy/v1/poddisruptionbudgets", labels=LABEL)["items"]
        return [name for name in migrations if name.startswith(OURS)] + [item["metadata"]["name"] for item in budgets]
