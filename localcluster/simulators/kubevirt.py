"""*fake-virt* simulates the parts of KubeVirt on which a drain depends. The product does not import this module.

A VirtualMachine gets its VMI according to its run strategy. A VMI gets a virt-launcher pod, which kwok runs. A
migration (VirtualMachineInstanceMigration) creates a second virt-launcher pod on another node, and moves the VMI to
that node. One annotation of the VMI decides whether it can be migrated. Another annotation records the guest's boot: a
migration keeps it, and a restart replaces it. All state is in the cluster, so the process can be killed and restarted
at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any, ClassVar

from kube.budgets import CREATED_BY_LABEL, MIGRATION_UID_LABEL
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import PODS_PATH, Object
from kube.pods import is_ready, is_terminating
from kube.times import format_time
from kube.virtualization.vmis import API_VERSION, MIGRATIONS_PATH, VMIS_PATH, get_key, get_vmi_key, is_finished
from localcluster.simulators.controller import FakeController

BOOT_ANNOTATION = "fake-virt/booted"
"""Annotation of a VMI with its guest's boot time and first virt-launcher pod; only a reboot changes its value."""
NOT_MIGRATABLE_ANNOTATION = "fake-virt/not-migratable"
"""Annotation that makes a VMI non-migratable; its value is the reason."""
FAILING_ANNOTATION = "fake-virt/failing"
"""Annotation of a node that makes all migrations to the node fail."""
HOLDING_ANNOTATION = "fake-virt/holding"
"""Annotation of a node that prevents all migrations to the node from finishing."""
MIGRATION_LABEL = MIGRATION_UID_LABEL
"""KubeVirt's label with a migration's uid, on the virt-launcher pod that the migration created."""
Item = Mapping[str, Any]
"""An object that the code only reads."""
VIRTUAL_MACHINES_PATH = f"/apis/{API_VERSION}/virtualmachines"
LAUNCHER_LABELS = {"kubevirt.io": "virt-launcher"}
FIRST_NODE_ANNOTATION = "fake-virt/first-node"
"""Annotation of a VirtualMachine or VMI with the node for its first virt-launcher pod, which bypasses the scheduler."""
RESTARTING_STRATEGIES = ("Always", "Running", "RerunOnFailure")
"""Run strategies with which a failed VMI is recreated; a requirement document writes `Running` for `Always`."""

PRINTABLE_STATUS = {"Running": "Running", "Stopped": "Stopped", "Failed": "Stopped"}
"""A VirtualMachine's `printableStatus` for each phase of its VMI; `Starting` for any other phase."""


class FakeKubeVirtController(FakeController):
    """Base class of the fake controllers for VMIs, migrations and virt-launcher pods."""

    watched: ClassVar[Mapping[str, str]] = {
        VMIS_PATH: "",
        MIGRATIONS_PATH: "",
        PODS_PATH: CREATED_BY_LABEL,
        NODES_PATH: "",
    }

    def _list_objects(self, path: str) -> list[Object]:
        objects: list[Object] = self._admin.list(path)["items"]
        return objects

    def _list_launcher_pods(self) -> dict[str, list[Object]]:
        """Return all virt-launcher pods by the uid of their VMI."""
        launcher_pods: dict[str, list[Object]] = {}
        for pod in self._admin.list(PODS_PATH, label_selector=CREATED_BY_LABEL)["items"]:
            launcher_pods.setdefault(pod["metadata"]["labels"][CREATED_BY_LABEL], []).append(pod)
        return launcher_pods

    def _has_annotation(self, node: str, annotation: str) -> bool:
        """Return whether a node has this annotation."""
        return annotation in (self._admin.get(build_node_path(node))["metadata"].get("annotations") or {})

    def _patch_vmi(self, instance: Object, status: Object, **metadata: Mapping[str, str]) -> None:
        """Patch a VMI, whose status is not a subresource; the patch fails if the VMI has changed since it was read."""
        metadata_patch = {"resourceVersion": instance["metadata"]["resourceVersion"], **metadata}
        path = get_object_path(instance, "virtualmachineinstances")
        instance.update(self._admin.patch(path, {"metadata": metadata_patch, "status": status}))


class FakeVirt(FakeKubeVirtController):
    """A thread that simulates KubeVirt's control plane and nodes during its `with` block."""

    watched: ClassVar[Mapping[str, str]] = {**FakeKubeVirtController.watched, VIRTUAL_MACHINES_PATH: ""}

    def reconcile(self) -> None:
        """Advance the state of every VirtualMachine, VMI and migration by one step."""
        vms, instances, migrations = (
            self._list_objects(path) for path in (VIRTUAL_MACHINES_PATH, VMIS_PATH, MIGRATIONS_PATH)
        )
        launcher_pods = self._list_launcher_pods()
        vmis_by_key = {get_key(instance): instance for instance in instances}
        for vm in vms:
            self._try_reconcile_step(partial(self._ensure_vmi, vm, vmis_by_key.get(get_key(vm))))
            self._try_reconcile_step(partial(self._write_vm_status, vm, vmis_by_key.get(get_key(vm))))
        for instance in instances:
            self._try_reconcile_step(
                partial(self._advance_vmi, instance, launcher_pods.get(instance["metadata"]["uid"], []))
            )
        for pod in self._find_stranded_launcher_pods(migrations, vmis_by_key, launcher_pods):
            self._try_reconcile_step(partial(self._delete_pod, pod))
        for migration in migrations:
            vmi = vmis_by_key.get(get_vmi_key(migration))
            if not is_finished(migration) and vmi is None:
                self._try_reconcile_step(partial(self._write_migration_status, migration, {"phase": "Failed"}))
            elif not is_finished(migration) and vmi is not None:
                self._try_reconcile_step(
                    partial(self._advance_migration, migration, vmi, launcher_pods.get(vmi["metadata"]["uid"], []))
                )

    def _find_stranded_launcher_pods(
        self, migrations: list[Object], vmis_by_key: Mapping[Any, Object], launcher_pods: Mapping[str, list[Object]]
    ) -> list[Object]:
        """Return the virt-launcher pods of deleted migrations, except for pods on the node of their VMI."""
        known_uids = ("", *(migration["metadata"]["uid"] for migration in migrations))
        nodes_by_uid = {
            instance["metadata"]["uid"]: (instance.get("status") or {}).get("nodeName")
            for instance in vmis_by_key.values()
        }
        return [
            pod
            for uid, node in nodes_by_uid.items()
            for pod in launcher_pods.get(uid, [])
            if pod["metadata"]["labels"].get(MIGRATION_LABEL, "") not in known_uids
            and pod["spec"].get("nodeName") != node
        ]

    def _delete_pod(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._admin.delete(path, uid=metadata["uid"])

    def _ensure_vmi(self, vm: Object, instance: Object | None) -> None:
        """Create a VirtualMachine's VMI if its run strategy requires one; delete a failed VMI, to recreate it."""
        strategy, metadata = get_run_strategy(vm), vm["metadata"]
        if instance is not None and get_phase(instance) == "Failed" and strategy in RESTARTING_STRATEGIES:
            self._admin.delete(get_object_path(instance, "virtualmachineinstances"), uid=instance["metadata"]["uid"])
        if instance is not None or strategy not in (*RESTARTING_STRATEGIES, "Manual"):
            return
        if strategy == "Manual" and (vm.get("status") or {}).get("created"):
            return
        collection = f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/virtualmachineinstances"
        self._admin.create(collection, build_instance(vm))
        self._admin.patch(f"{get_object_path(vm, 'virtualmachines')}/status", {"status": {"created": True}})

    def _write_vm_status(self, vm: Object, instance: Object | None) -> None:
        """Write the status of a VirtualMachine, which `kubectl get vm` prints."""
        status = vm.get("status") or {}
        phase = get_phase(instance) if instance is not None else "Stopped"
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        vm_status = {
            "ready": phase == "Running",
            "printableStatus": PRINTABLE_STATUS.get(phase, "Starting"),
            "conditions": [ready],
        }
        if {name: status.get(name) for name in vm_status} != vm_status:
            self._admin.patch(f"{get_object_path(vm, 'virtualmachines')}/status", {"status": vm_status})

    def _advance_vmi(self, instance: Object, launcher_pods: list[Object]) -> None:
        """Advance a VMI from creation to Running, or to Failed if its virt-launcher pod no longer exists."""
        phase, metadata = get_phase(instance), instance["metadata"]
        if metadata.get("deletionTimestamp") or phase == "Failed":
            return
        launcher = next((pod for pod in launcher_pods if MIGRATION_LABEL not in pod["metadata"]["labels"]), None)
        if phase == "Running":
            self._update_running_vmi(instance, launcher_pods)
        elif launcher is None:
            name = f"virt-launcher-{metadata['name']}-{metadata['uid'][:5]}"
            first_node = (metadata.get("annotations") or {}).get(FIRST_NODE_ANNOTATION)
            self._admin.create(
                get_pods_path(instance),
                build_launcher_pod(name, instance, {"nodeName": first_node} if first_node else {}, {}),
            )
            self._patch_vmi(instance, {"phase": "Scheduling"})
        elif is_ready(launcher):
            boot = {BOOT_ANNOTATION: f"{format_now()} in {launcher['metadata']['uid']}"}
            self._patch_vmi(instance, build_running_status(instance, launcher), annotations=boot)

    def _update_running_vmi(self, instance: Object, launcher_pods: list[Object]) -> None:
        """Update the conditions of a VMI; fail or delete it if it has no virt-launcher pod on its node."""
        node = instance["status"]["nodeName"]
        if not any(pod["spec"].get("nodeName") == node and not is_terminating(pod) for pod in launcher_pods):
            if instance["metadata"].get("ownerReferences"):
                changes = {"interfaces": None, "conditions": build_conditions(instance, ready=False)}
                self._patch_vmi(instance, {"phase": "Failed", **changes})
            else:
                self._admin.delete(
                    get_object_path(instance, "virtualmachineinstances"), uid=instance["metadata"]["uid"]
                )
        elif instance["status"].get("conditions") != build_conditions(instance):
            self._patch_vmi(instance, {"conditions": build_conditions(instance)})

    def _advance_migration(self, migration: Object, instance: Object, launcher_pods: list[Object]) -> None:
        """Advance a migration by one step: create the target pod, then report Running, then finish the migration."""
        uid, source = migration["metadata"]["uid"], (instance.get("status") or {}).get("nodeName")
        target = next((pod for pod in launcher_pods if pod["metadata"]["labels"].get(MIGRATION_LABEL) == uid), None)
        phase = (migration.get("status") or {}).get("phase")
        if target is None:
            name = f"virt-launcher-{instance['metadata']['name']}-{uid[:5]}"
            body = build_launcher_pod(
                name, instance, {"affinity": build_anti_affinity(str(source))}, {MIGRATION_LABEL: uid}
            )
            self._admin.create(get_pods_path(instance), body)
            self._write_migration_status(migration, {"phase": "Scheduling"})
        elif is_ready(target) and phase != "Running":
            state = {"sourceNode": source, "targetNode": target["spec"]["nodeName"], "startTimestamp": format_now()}
            self._patch_vmi(instance, {"migrationState": {"migrationUid": uid, **state}})
            self._write_migration_status(migration, {"phase": "Running", "migrationState": state})
        elif is_ready(target) and not self._has_annotation(target["spec"]["nodeName"], HOLDING_ANNOTATION):
            self._finish_migration(migration, instance, target, [pod for pod in launcher_pods if pod is not target])

    def _finish_migration(
        self, migration: Object, instance: Object, target: Object, other_launchers: list[Object]
    ) -> None:
        """Move the VMI to the target node and delete the source pod; or fail, if the node has `FAILING_ANNOTATION`."""
        node = target["spec"]["nodeName"]
        is_failing = self._has_annotation(node, FAILING_ANNOTATION)
        state = {**migration["status"]["migrationState"], "endTimestamp": format_now(), "completed": True}
        state |= {"failed": True} if is_failing else {}
        location = {} if is_failing else {"nodeName": node, "interfaces": build_interfaces(target)}
        self._patch_vmi(instance, {"migrationState": {**instance["status"]["migrationState"], **state}, **location})
        self._write_migration_status(
            migration, {"phase": "Failed" if is_failing else "Succeeded", "migrationState": state}
        )
        for pod in [target] if is_failing else other_launchers:
            self._admin.delete(f"{get_pods_path(instance)}/{pod['metadata']['name']}", uid=pod["metadata"]["uid"])

    def _write_migration_status(self, migration: Object, status: Object) -> None:
        path = get_object_path(migration, "virtualmachineinstancemigrations")
        self._admin.patch(f"{path}/status", {"status": status})


def get_run_strategy(vm: Item) -> str:
    """Return a VirtualMachine's run strategy; `running: true` is equivalent to `Always` (C15)."""
    spec = vm["spec"]
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


def build_instance(vm: Item) -> Object:
    """Build a VirtualMachine's VMI."""
    metadata, template = vm["metadata"], vm["spec"]["template"]
    owner = {"apiVersion": API_VERSION, "kind": "VirtualMachine", "name": metadata["name"], "uid": metadata["uid"]}
    identity = {"name": metadata["name"], "ownerReferences": [{**owner, "controller": True}]}
    metadata = {"annotations": template.get("metadata", {}).get("annotations") or {}}
    first_node_annotation = (
        {} if (vm.get("status") or {}).get("created") else {FIRST_NODE_ANNOTATION: get_first_node(vm)}
    )
    metadata["annotations"] = {
        **metadata["annotations"],
        **{name: value for name, value in first_node_annotation.items() if value},
    }
    kind = "VirtualMachineInstance"
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {**identity, **metadata}, "spec": template["spec"]}


def get_first_node(vm: Item) -> str:
    """Return the node on which a VirtualMachine must be started the first time, or "" for any node."""
    return str((vm["metadata"].get("annotations") or {}).get(FIRST_NODE_ANNOTATION) or "")


def build_launcher_pod(name: str, instance: Item, spec: Object, labels: Mapping[str, str]) -> Object:
    """Build a virt-launcher pod for a VMI."""
    metadata = instance["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": instance["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {
            "name": name,
            "labels": {**LAUNCHER_LABELS, CREATED_BY_LABEL: metadata["uid"], **labels},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"containers": [{"name": "compute", "image": "fake"}], **spec},
    }


def build_anti_affinity(node: str) -> Object:
    """Build an affinity that keeps a pod away from a node."""
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def format_now() -> str:
    """Return the current time as a Kubernetes timestamp."""
    return format_time(datetime.now(timezone.utc))


def get_phase(instance: Item) -> str:
    """Return the phase of a VMI, or "" if it has none yet."""
    return str((instance.get("status") or {}).get("phase") or "")


def build_running_status(instance: Item, launcher: Item) -> Object:
    """Build the status of a running VMI whose virt-launcher pod is ready (DRN-16a)."""
    return {
        "phase": "Running",
        "nodeName": launcher["spec"]["nodeName"],
        "interfaces": build_interfaces(launcher),
        "migrationMethod": "BlockMigration",
        "conditions": build_conditions(instance),
    }


def build_interfaces(launcher: Item) -> list[Object]:
    """Build a guest's network interfaces, which have the IP address of the guest's virt-launcher pod."""
    return [{"name": "default", "mac": "02:00:00:00:00:01", "ipAddress": launcher["status"].get("podIP", "")}]


def build_conditions(instance: Item, *, ready: bool = True) -> list[Object]:
    """Build the conditions Ready and LiveMigratable of a VMI."""
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
