"""The environment of the virtualization tests: creates VMs and VMIs, and watches them during drains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from random import Random
from subprocess import CompletedProcess
from typing import Any

from kube.client.api import absent_ok
from kube.nodes import node_path
from kube.paths import Object
from kube.virtualization.vmis import API_VERSION, INSTANCE, INSTANCES, LIVE_MIGRATE, MIGRATIONS, migrations_path
from kube.virtualization.migration_claims import CLAIM_PATH
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.chain.environment import Scene
from tests.chain.virtualization.migration_watcher import Watcher
from tests.fake_virt import FIRST_NODE, MACHINES
from tests.fake_kubevirt_base import BOOTED, FAILING, HOLDING, UNABLE, conditions, path_of, phase
from tests.waiting import until
from tests.workload import Audit

SECONDS = 180.0
LAUNCHER = "virt-launcher-"


class Stage(Scene):
    """The chain environment with methods for VMs, VMIs and migrations."""

    def __init__(self, cluster: LocalCluster, product: Product) -> None:
        super().__init__(cluster, product)
        self.space = self.namespace()

    def machine(
        self, name: str, node: str, *, strategy: str = "Always", why: str = "", evict: str = LIVE_MIGRATE
    ) -> str:
        """Create a VirtualMachine that starts on the node; return its name.

        Args:
            name: The VirtualMachine's name.
            node: The node of its first start.
            strategy: Its run strategy.
            why: Why its VMI cannot be migrated, "" if it can.
            evict: Its eviction strategy, "" for none.
        """
        noted = {"annotations": {UNABLE: why} if why else {}}
        chosen = {"evictionStrategy": evict} if evict else {}
        metadata, spec = self._begins_on(node, {"name": name}, {"domain": {"devices": {}}, **chosen})
        template = {"metadata": noted, "spec": spec}
        body = {
            "apiVersion": API_VERSION,
            "kind": "VirtualMachine",
            "metadata": metadata,
            "spec": {"runStrategy": strategy, "template": template},
        }
        self.admin.create(self.machines_path, body)
        return name

    def stopped(self, name: str) -> Object:
        """Wait until the VirtualMachine's status is Stopped; return the VirtualMachine."""
        return self.until(
            self.machines_path, name, lambda item: (item.get("status") or {}).get("printableStatus") == "Stopped"
        )

    def start(self, name: str) -> None:
        """Start a stopped VirtualMachine by the same change that KubeVirt's API makes for `virtctl start`."""
        self.admin.patch(f"{self.machines_path}/{name}", {"spec": {"runStrategy": "Always"}})

    def _begins_on(self, node: str, metadata: Object, spec: Object) -> tuple[Object, Object]:
        """Return the metadata of a VM or VMI and the VMI's spec, so that it starts on this node."""
        return {**metadata, "annotations": {FIRST_NODE: node}}, spec

    def instance(self, name: str, node: str) -> str:
        """Create a VMI that no VM owns; return its name."""
        metadata, spec = self._begins_on(node, {"name": name}, {"domain": {"devices": {}}})
        body = {"apiVersion": API_VERSION, "kind": INSTANCE, "metadata": metadata, "spec": spec}
        self.admin.create(self.instances_path, body)
        return name

    def instances(self) -> dict[str, Object]:
        """Return name → VMI, in their current state."""
        return {item["metadata"]["name"]: item for item in self.admin.list(self.instances_path)["items"]}

    @property
    def machines_path(self) -> str:
        """Return the API path of the VMs."""
        return f"/apis/{API_VERSION}/namespaces/{self.space}/virtualmachines"

    @property
    def instances_path(self) -> str:
        """Return the API path of the VMIs."""
        return f"/apis/{API_VERSION}/namespaces/{self.space}/virtualmachineinstances"

    def await_instances(self, done: Callable[[dict[str, Object]], bool], seconds: float = SECONDS) -> dict[str, Object]:
        """Return name → VMI once `done` is true for them."""
        return until(self.admin, self.instances_path, done, seconds)

    def run(self, *names: str) -> dict[str, str]:
        """Wait until these VMIs run; return name → boot time and place."""
        found = self.await_instances(lambda known: all(is_running(known.get(name)) for name in names))
        return {name: booted(found[name]) for name in names}

    def rebooted(self, before: Mapping[str, str], *names: str) -> dict[str, Object]:
        """Return name → VMI once these run with another boot than `before`."""

        def is_so(known: dict[str, Object]) -> bool:
            return all(is_running(known.get(name)) and booted(known[name]) != before[name] for name in names)

        return self.await_instances(is_so)

    def able(self, name: str) -> None:
        """Make a VMI migratable from now on, and set its condition accordingly."""
        status = {"conditions": conditions({"metadata": {}})}
        change = {"metadata": {"annotations": {UNABLE: None}}, "status": status}
        self.admin.patch(f"{self.instances_path}/{name}", change)

    def fail_on(self, *names: str, fails: bool = True) -> None:
        """Let migrations to these nodes fail, or succeed again."""
        self._mark(FAILING, names, there=fails)

    @contextmanager
    def holding(self, *names: str) -> Iterator[None]:
        """Keep migrations to these nodes from finishing while the block runs."""
        self._mark(HOLDING, names, there=True)
        yield
        self._mark(HOLDING, names, there=False)

    def migrating(self, *names: str) -> dict[str, Object]:
        """Return VMI name → migration once a migration of each of these VMIs is Running."""

        def found(known: dict[str, Object]) -> dict[str, Object]:
            return {item["spec"]["vmiName"]: item for item in known.values() if phase(item) == "Running"}

        path = migrations_path(self.space)
        return found(until(self.admin, path, lambda known: set(names) <= set(found(known)), SECONDS))

    def delete_migration(self, migration: Object) -> None:
        """Delete a migration as a user would."""
        self.admin.delete(path_of(migration, "virtualmachineinstancemigrations"), uid=migration["metadata"]["uid"])

    def delete_machine(self, name: str) -> None:
        """Delete a VM as a user would; its VMI and migrations are deleted with it."""
        path = f"{self.machines_path}/{name}"
        self.admin.delete(path, uid=self.admin.get(path)["metadata"]["uid"])

    def _mark(self, mark: str, names: Iterable[str], *, there: bool) -> None:
        """Set this annotation on the nodes, or remove it."""
        told = {"metadata": {"annotations": {mark: "" if there else None}}}
        self.admin.together(*(self.admin.api.patch(node_path(name), told) for name in names))

    def kill(self, chance: Random) -> None:
        """Kill the functions or the delivery with SIGKILL, and restart them."""
        if chance.random() < 0.7:
            self.product.kill_functions()
            self.product.start_functions()
        else:
            self.product.kill_delivery()
            self.product.start_delivery()

    def protected(self) -> set[str]:
        """Return the names of the VMIs that have a budget."""
        items = self.admin.list(f"/apis/policy/v1/namespaces/{self.space}/poddisruptionbudgets")["items"]
        return {owner["name"] for item in items for owner in item["metadata"]["ownerReferences"]}

    def evict(self, pod: str) -> Object:
        """Evict a pod of the VMs' namespace as any client may. Raises `ApiError` if the API server rejects it."""
        return self.admin.create(self._eviction_path(pod), self._eviction(pod))

    def evict_by_kubectl(self, pod: str) -> CompletedProcess[str]:
        """Request the same eviction with kubectl; return the completed command."""
        body = json.dumps(self._eviction(pod))
        return self.cluster.kubectl("create", "--raw", self._eviction_path(pod), "-f", "-", input=body, check=False)

    def _eviction(self, pod: str) -> Object:
        metadata = {"name": pod, "namespace": self.space}
        return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}

    def _eviction_path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self.space}/pods/{pod}/eviction"

    def creators(self, budget: str) -> list[str]:
        """Return the user name of each request that created a budget with this name."""
        return [
            entry["user"]["username"]
            for entry in self.audit()
            if (entry["verb"], entry["objectRef"]["resource"]) == ("create", "poddisruptionbudgets")
            and entry["objectRef"].get("name") == budget
            and entry["responseStatus"]["code"] == HTTPStatus.CREATED
        ]

    @contextmanager
    def kubevirt(self) -> Iterator[None]:
        """Create the KubeVirt object while the block runs, so that the product detects KubeVirt as installed."""
        where = f"/apis/{API_VERSION}/namespaces/{self.space}/kubevirts"
        body = {"apiVersion": API_VERSION, "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
        made = self.admin.create(where, body)
        yield
        self.admin.delete(f"{where}/kubevirt", uid=made["metadata"]["uid"])

    def migrations(self) -> Counter[str]:
        """Return VMI name → number of its migrations."""
        return Counter(item["spec"]["vmiName"] for item in self.admin.list(MIGRATIONS)["items"])

    def watcher(self, homes: Mapping[str, str] | None = None) -> Watcher:
        """Return a watcher of all migrations."""
        return Watcher(self.admin, homes)

    def keeps_node_limit(self, limit: int, most: int) -> bool:
        """Return whether `most` concurrent migrations from one node are exactly the limit."""
        return most == limit

    def shut_down(self, evictions: Audit) -> set[str]:
        """Return the names of the VMs whose running virt-launcher pod was evicted."""
        granted = [entry for entry in evictions.evictions() if entry["responseStatus"]["code"] < 300]
        names = {entry["objectRef"]["name"] for entry in granted} - self._completed()
        return {machine_of(name) for name in names if name.startswith(LAUNCHER)}

    def _completed(self) -> set[str]:
        """Return the virt-launcher pods that completed by themselves."""
        return set()

    def clear(self) -> None:
        """Delete all objects of a test: VMs, VMIs, migrations and their claims."""
        for plural, path in (("virtualmachines", MACHINES), ("virtualmachineinstances", INSTANCES),
                             ("virtualmachineinstancemigrations", MIGRATIONS)):  # fmt: skip
            for item in self.admin.list(path)["items"]:
                self.admin.run(absent_ok(self.admin.api.request("DELETE", path_of(item, plural))))
        self.admin.run(absent_ok(self.admin.api.request("DELETE", CLAIM_PATH)))
        until(self.admin, self.instances_path, lambda known: not known, SECONDS)

    def taint(self, node: str, *taints: Object) -> None:
        """Replace the node's taints by hand."""
        self.admin.patch(node_path(node), {"spec": {"taints": list(taints)}})


def machine_of(launcher: str) -> str:
    """Return the VM's name for the name of its virt-launcher pod."""
    return launcher.removeprefix(LAUNCHER).rpartition("-")[0]


def is_running(instance: Object | None) -> bool:
    """Return whether the VMI is Running."""
    return bool(instance and (instance.get("status") or {}).get("phase") == "Running")


def booted(instance: Object) -> str:
    """Return the annotation with the time and the place of the guest's boot."""
    return str(instance["metadata"]["annotations"][BOOTED])


def node_of(instance: Object) -> str:
    """Return the name of the VMI's node, "" if it has none."""
    return str((instance.get("status") or {}).get("nodeName") or "")


def blocked(item: Object) -> dict[str, Any]:
    """Return pod name → reason and message of each blocked pod of a maintenance."""
    return {each["name"]: (each["reason"], each["message"]) for each in item.get("status", {}).get("blockedPods") or []}
