"""What those who play parts of KubeVirt have in common: what they look at, and how they write what they saw."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, ClassVar

from kube.budgets import CREATED_BY, TARGET
from kube.nodes import NODES, node_path
from kube.paths import PODS, Object
from kube.times import timestamp
from kube.virtualization.machines import API_VERSION, INSTANCES, MIGRATIONS
from tests.player import Player

BOOTED = "fake-virt/booted"
"""On an instance: when its guest booted, and in which launcher. It is unbroken as long as this is the same."""
UNABLE = "fake-virt/not-migratable"
"""On an instance: why it cannot be migrated."""
FAILING = "fake-virt/failing"
"""On a node: migrations to it fail."""
HOLDING = "fake-virt/holding"
"""On a node: migrations to it do not end."""
MIGRATION = TARGET
"""Label of a migration's launcher, as KubeVirt has it: the uid of the migration."""
Item = Mapping[str, Any]
"""An object, read only."""


class Actor(Player):
    """Plays its part for as long as its block lasts."""

    watched: ClassVar[Mapping[str, str]] = {INSTANCES: "", MIGRATIONS: "", PODS: CREATED_BY, NODES: ""}

    def _listed(self, path: str) -> list[Object]:
        items: list[Object] = self._admin.list(path)["items"]
        return items

    def _launchers(self) -> dict[str, list[Object]]:
        """The launcher pods, by the uid of their instance."""
        found: dict[str, list[Object]] = {}
        for pod in self._admin.list(PODS, labels=CREATED_BY)["items"]:
            found.setdefault(pod["metadata"]["labels"][CREATED_BY], []).append(pod)
        return found

    def _is_marked(self, node: str, mark: str) -> bool:
        """Whether a node has this annotation."""
        return mark in (self._admin.get(node_path(node))["metadata"].get("annotations") or {})

    def _write(self, instance: Object, status: Object, **metadata: Mapping[str, str]) -> None:
        """Write into an instance as it was seen; its status is no resource of its own."""
        seen = {"resourceVersion": instance["metadata"]["resourceVersion"], **metadata}
        path = path_of(instance, "virtualmachineinstances")
        instance.update(self._admin.patch(path, {"metadata": seen, "status": status}))


def moment() -> str:
    """Now, as objects have it."""
    return timestamp(datetime.now(timezone.utc))


def phase(instance: Item) -> str:
    """Its phase, "" before the first."""
    return str((instance.get("status") or {}).get("phase") or "")


def running(instance: Item, home: Item) -> Object:
    """The status of an instance whose launcher is ready (DRN-16a)."""
    return {
        "phase": "Running",
        "nodeName": home["spec"]["nodeName"],
        "interfaces": interfaces(home),
        "migrationMethod": "BlockMigration",
        "conditions": conditions(instance),
    }


def interfaces(launcher: Item) -> list[Object]:
    """The addresses of a guest, which are those of its launcher."""
    return [{"name": "default", "mac": "02:00:00:00:00:01", "ipAddress": launcher["status"].get("podIP", "")}]


def conditions(instance: Item, *, ready: bool = True) -> list[Object]:
    """What an instance says of itself."""
    why = (instance["metadata"].get("annotations") or {}).get(UNABLE)
    able: Object = {"type": "LiveMigratable", "status": "False" if why else "True"}
    able |= {"reason": "DisksNotLiveMigratable", "message": why} if why else {}
    return [{"type": "Ready", "status": str(ready)}, able]


def pods_of(instance: Item) -> str:
    """Path of the pods of its namespace."""
    return f"/api/v1/namespaces/{instance['metadata']['namespace']}/pods"


def path_of(item: Item, plural: str) -> str:
    """Path of a machine, an instance or a migration."""
    metadata = item["metadata"]
    return f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
