"""The shared part of the KubeVirt simulations: the collections that they watch, and how they write to VMIs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, ClassVar

from kube.budgets import CREATED_BY, TARGET
from kube.nodes import NODES, node_path
from kube.paths import PODS, Object
from kube.times import timestamp
from kube.virtualization.vmis import API_VERSION, INSTANCES, MIGRATIONS
from tests.fake_controller import Player

BOOTED = "fake-virt/booted"
"""On a VMI: when its guest booted, and in which virt-launcher pod. Unchanged as long as the guest runs."""
UNABLE = "fake-virt/not-migratable"
"""On a VMI: why it cannot be migrated."""
FAILING = "fake-virt/failing"
"""On a node: migrations to it fail."""
HOLDING = "fake-virt/holding"
"""On a node: migrations to it do not finish."""
MIGRATION = TARGET
"""KubeVirt's label of a migration's virt-launcher pod: the uid of the migration."""
Item = Mapping[str, Any]
"""A read-only object."""


class Actor(Player):
    """A fake controller of VMIs, migrations and virt-launcher pods."""

    watched: ClassVar[Mapping[str, str]] = {INSTANCES: "", MIGRATIONS: "", PODS: CREATED_BY, NODES: ""}

    def _listed(self, path: str) -> list[Object]:
        items: list[Object] = self._admin.list(path)["items"]
        return items

    def _launchers(self) -> dict[str, list[Object]]:
        """Return the virt-launcher pods by the uid of their VMI."""
        found: dict[str, list[Object]] = {}
        for pod in self._admin.list(PODS, labels=CREATED_BY)["items"]:
            found.setdefault(pod["metadata"]["labels"][CREATED_BY], []).append(pod)
        return found

    def _is_marked(self, node: str, mark: str) -> bool:
        """Return whether a node has this annotation."""
        return mark in (self._admin.get(node_path(node))["metadata"].get("annotations") or {})

    def _write(self, instance: Object, status: Object, **metadata: Mapping[str, str]) -> None:
        """Patch a VMI, provided that it is unchanged since it was read; its status is not a subresource."""
        seen = {"resourceVersion": instance["metadata"]["resourceVersion"], **metadata}
        path = path_of(instance, "virtualmachineinstances")
        instance.update(self._admin.patch(path, {"metadata": seen, "status": status}))


def moment() -> str:
    """Return the current time as a Kubernetes timestamp."""
    return timestamp(datetime.now(timezone.utc))


def phase(instance: Item) -> str:
    """Return the phase of a VMI, "" if it has none yet."""
    return str((instance.get("status") or {}).get("phase") or "")


def running(instance: Item, home: Item) -> Object:
    """Build the status of a VMI whose virt-launcher pod is ready (DRN-16a)."""
    return {
        "phase": "Running",
        "nodeName": home["spec"]["nodeName"],
        "interfaces": interfaces(home),
        "migrationMethod": "BlockMigration",
        "conditions": conditions(instance),
    }


def interfaces(launcher: Item) -> list[Object]:
    """Return the network interfaces of a guest, with the address of its virt-launcher pod."""
    return [{"name": "default", "mac": "02:00:00:00:00:01", "ipAddress": launcher["status"].get("podIP", "")}]


def conditions(instance: Item, *, ready: bool = True) -> list[Object]:
    """Build the conditions of a VMI."""
    why = (instance["metadata"].get("annotations") or {}).get(UNABLE)
    able: Object = {"type": "LiveMigratable", "status": "False" if why else "True"}
    able |= {"reason": "DisksNotLiveMigratable", "message": why} if why else {}
    return [{"type": "Ready", "status": str(ready)}, able]


def pods_of(instance: Item) -> str:
    """Return the API path of the pods in the object's namespace."""
    return f"/api/v1/namespaces/{instance['metadata']['namespace']}/pods"


def path_of(item: Item, plural: str) -> str:
    """Return the API path of a VirtualMachine, a VMI or a migration."""
    metadata = item["metadata"]
    return f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
