"""Base class for the KubeVirt simulations: the collections that they watch, and helpers that write to VMIs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, ClassVar

from kube.budgets import CREATED_BY_LABEL, MIGRATION_UID_LABEL
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import PODS_PATH, Object
from kube.times import format_time
from kube.virtualization.vmis import API_VERSION, MIGRATIONS_PATH, VMIS_PATH
from tests.fake_controller import FakeController

BOOT_ANNOTATION = "fake-virt/booted"
"""Annotation of a VMI with the boot time and the first virt-launcher pod of its guest; a reboot changes its value."""
NOT_MIGRATABLE_ANNOTATION = "fake-virt/not-migratable"
"""Annotation of a VMI that cannot be migrated; its value is the reason."""
FAILING_ANNOTATION = "fake-virt/failing"
"""Annotation of a node to which all migrations fail."""
HOLDING_ANNOTATION = "fake-virt/holding"
"""Annotation of a node to which no migration finishes."""
MIGRATION_LABEL = MIGRATION_UID_LABEL
"""KubeVirt's label of the virt-launcher pod that a migration creates: the uid of the migration."""
Item = Mapping[str, Any]
"""A read-only object."""


class FakeKubeVirtController(FakeController):
    """A fake controller for VMIs, migrations and virt-launcher pods."""

    watched: ClassVar[Mapping[str, str]] = {
        VMIS_PATH: "",
        MIGRATIONS_PATH: "",
        PODS_PATH: CREATED_BY_LABEL,
        NODES_PATH: "",
    }

    def _list_objects(self, path: str) -> list[Object]:
        objects: list[Object] = self._admin.list(path)["items"]
        return objects

    def _list_launchers(self) -> dict[str, list[Object]]:
        """Return the virt-launcher pods by the uid of their VMI."""
        launchers: dict[str, list[Object]] = {}
        for pod in self._admin.list(PODS_PATH, label_selector=CREATED_BY_LABEL)["items"]:
            launchers.setdefault(pod["metadata"]["labels"][CREATED_BY_LABEL], []).append(pod)
        return launchers

    def _has_annotation(self, node: str, annotation: str) -> bool:
        """Return whether a node has this annotation."""
        return annotation in (self._admin.get(build_node_path(node))["metadata"].get("annotations") or {})

    def _patch_instance(self, instance: Object, status: Object, **metadata: Mapping[str, str]) -> None:
        """Patch a VMI unless it has changed since it was read; its status is not a subresource."""
        metadata_patch = {"resourceVersion": instance["metadata"]["resourceVersion"], **metadata}
        path = get_object_path(instance, "virtualmachineinstances")
        instance.update(self._admin.patch(path, {"metadata": metadata_patch, "status": status}))


def format_now() -> str:
    """Return the current time as a Kubernetes timestamp."""
    return format_time(datetime.now(timezone.utc))


def get_phase(instance: Item) -> str:
    """Return the phase of a VMI, or "" if it has none yet."""
    return str((instance.get("status") or {}).get("phase") or "")


def build_running_status(instance: Item, launcher: Item) -> Object:
    """Build the status of a VMI whose virt-launcher pod is ready (DRN-16a)."""
    return {
        "phase": "Running",
        "nodeName": launcher["spec"]["nodeName"],
        "interfaces": build_interfaces(launcher),
        "migrationMethod": "BlockMigration",
        "conditions": build_conditions(instance),
    }


def build_interfaces(launcher: Item) -> list[Object]:
    """Build the network interfaces of a guest, which have the address of its virt-launcher pod."""
    return [{"name": "default", "mac": "02:00:00:00:00:01", "ipAddress": launcher["status"].get("podIP", "")}]


def build_conditions(instance: Item, *, ready: bool = True) -> list[Object]:
    """Build the conditions of a VMI."""
    reason = (instance["metadata"].get("annotations") or {}).get(NOT_MIGRATABLE_ANNOTATION)
    migratable: Object = {"type": "LiveMigratable", "status": "False" if reason else "True"}
    migratable |= {"reason": "DisksNotLiveMigratable", "message": reason} if reason else {}
    return [{"type": "Ready", "status": str(ready)}, migratable]


def get_pods_path(instance: Item) -> str:
    """Return the API path of the pods in the VMI's namespace."""
    return f"/api/v1/namespaces/{instance['metadata']['namespace']}/pods"


def get_object_path(obj: Item, plural: str) -> str:
    """Return the API path of a VirtualMachine, a VMI or a migration."""
    metadata = obj["metadata"]
    return f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
