"""*fake-virt-handler* simulates KubeVirt's virt-handlers and virt-launchers next to a real virt-controller.

The simulator advertises devices on each node, and labels the node as schedulable for VMIs. It boots a guest when the
guest's virt-launcher pod is ready, and reports whether the VMI can be migrated. It completes each migration that
virt-controller has handed over. After a guest's migration, it also completes the guest's old virt-launcher pod.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from functools import partial

from kube.client.sync_client import SyncClient
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from kube.pods import get_node_name, is_terminating
from kube.pods import is_finished as is_pod_finished
from kube.times import format_time, parse_time_or_none
from kube.virtualization.vmis import MIGRATIONS_PATH, VMIS_PATH, get_key, get_vmi_key, is_finished
from localcluster.simulators.kubevirt import (
    BOOT_ANNOTATION,
    FAILING_ANNOTATION,
    HOLDING_ANNOTATION,
    MIGRATION_LABEL,
    FakeKubeVirtController,
    Item,
    build_conditions,
    build_running_status,
    format_now,
    get_phase,
    get_pods_path,
)

SCHEDULABLE_LABEL = "kubevirt.io/schedulable"
HEARTBEAT_ANNOTATION = "kubevirt.io/heartbeat"
HEARTBEAT_PERIOD = timedelta(minutes=1)
"""Interval between heartbeats; virt-controller considers a node failed if it has no heartbeat for five minutes."""
DEVICES = {f"devices.kubevirt.io/{name}": "1k" for name in ("kvm", "tun", "vhost-net")}
LIVE_MIGRATABLE = "LiveMigratable"
NODE_NAME_LABEL = "kubevirt.io/nodeName"
"""Label of a VMI with the name of its node."""
MIGRATION_PORTS = {"49152": 0}
"""Ports on which the target node of a migration listens."""


class FakeVirtHandler(FakeKubeVirtController):
    """A thread that simulates the virt-handlers of all nodes during its `with` block."""

    def __init__(self, client: SyncClient, min_interval_seconds: float = 0.1) -> None:
        super().__init__(client, min_interval_seconds)
        self.completed: set[str] = set()
        """Names of the virt-launcher pods that this simulator has completed."""
        self.completed_at: list[float] = []

    def reconcile(self) -> None:
        """Advance the state of every node, VMI and virt-launcher pod by one step."""
        for node in self._admin.list(NODES_PATH, resource_version="0")["items"]:
            self._try_reconcile_step(partial(self._register_node, node))
        all_migrations = self._list_objects(MIGRATIONS_PATH)
        migrations = {get_vmi_key(migration): migration for migration in all_migrations if not is_finished(migration)}
        launcher_pods = self._list_launcher_pods()
        for instance in self._list_objects(VMIS_PATH):
            pods, migration = launcher_pods.get(instance["metadata"]["uid"], []), migrations.get(get_key(instance))
            self._try_reconcile_step(partial(self._advance_vmi, instance, pods, migration))

    def _register_node(self, node: Object) -> None:
        """Make a node schedulable for VMIs, and write its heartbeat."""
        path = build_node_path(node["metadata"]["name"])
        if not has_devices(node):
            self._admin.patch(f"{path}/status", {"status": {"capacity": DEVICES, "allocatable": DEVICES}})
        now = datetime.now(timezone.utc)
        heartbeat = parse_time_or_none((node["metadata"].get("annotations") or {}).get(HEARTBEAT_ANNOTATION))
        if heartbeat is None or now - heartbeat > HEARTBEAT_PERIOD:
            metadata = {"labels": {SCHEDULABLE_LABEL: "true"}, "annotations": {HEARTBEAT_ANNOTATION: format_time(now)}}
            self._admin.patch(path, {"metadata": metadata})

    def _advance_vmi(self, instance: Object, pods: list[Object], migration: Item | None) -> None:
        """Advance a VMI by one step, and complete virt-launcher pods on nodes from which the VMI was migrated."""
        active_pods = [pod for pod in pods if not is_terminating(pod) and not is_pod_finished(pod)]
        current_pod = next(
            (pod for pod in active_pods if get_node_name(pod) == instance.get("status", {}).get("nodeName")), None
        )
        if instance["metadata"].get("deletionTimestamp"):
            if get_phase(instance) in ("Scheduled", "Running"):
                self._patch_vmi(instance, {"phase": "Succeeded"})
            return
        if current_pod is not None and get_phase(instance) == "Scheduled":
            self._boot_guest(instance, current_pod)
        elif current_pod is not None and get_phase(instance) == "Running":
            self._advance_migration(instance, migration)
            self._write_migratable_condition(instance)
            self._complete_abandoned_launcher_pods(instance, active_pods, migration)

    def _complete_abandoned_launcher_pods(
        self, instance: Item, active_pods: list[Object], migration: Item | None
    ) -> None:
        """Complete the virt-launcher pods that are neither on the VMI's node nor the target of its migration."""
        uid = migration["metadata"]["uid"] if migration else ""
        for pod in active_pods:
            is_on_other_node = get_node_name(pod) not in ("", instance["status"]["nodeName"])
            if is_on_other_node and pod["metadata"]["labels"].get(MIGRATION_LABEL) != uid:
                self._complete_pod(instance, pod)

    def _boot_guest(self, instance: Object, launcher_pod: Object) -> None:
        now = format_now()
        transitions = [*instance["status"].get("phaseTransitionTimestamps", [])]
        transitions.append({"phase": "Running", "phaseTransitionTimestamp": now})
        status = build_running_status(instance, launcher_pod)
        status |= {
            "selinuxContext": "none",
            "phaseTransitionTimestamps": transitions,
            "conditions": build_handler_conditions(instance),
        }
        self._patch_vmi(instance, status, annotations={BOOT_ANNOTATION: f"{now} in {launcher_pod['metadata']['uid']}"})

    def _write_migratable_condition(self, instance: Object) -> None:
        if build_handler_conditions(instance) != instance["status"].get("conditions"):
            self._patch_vmi(instance, {"conditions": build_handler_conditions(instance)})

    def _advance_migration(self, instance: Object, migration: Item | None) -> None:
        """Advance a migration that virt-controller has handed over, as the two nodes' virt-handlers would."""
        state = instance["status"].get("migrationState") or {}
        if state.get("abortRequested") and "endTimestamp" not in state:
            self._patch_vmi(
                instance,
                {"migrationState": {**build_migration_end_fields(), "failed": True, "abortStatus": "Succeeded"}},
            )
        if migration is None or state.get("migrationUid") != migration["metadata"]["uid"] or "endTimestamp" in state:
            return
        if "targetNodeAddress" not in state:
            target_address = {"targetNodeAddress": "10.0.0.1", "targetDirectMigrationNodePorts": MIGRATION_PORTS}
            self._patch_vmi(instance, {"migrationState": target_address})
        elif "startTimestamp" not in state:
            self._patch_vmi(instance, {"migrationState": {"startTimestamp": format_now()}})
        elif (migration.get("status") or {}).get("phase") == "Running":
            self._finish_migration(instance, state["targetNode"])

    def _finish_migration(self, instance: Object, node: str) -> None:
        """Move the guest to the target node, or fail the migration if the node has `FAILING_ANNOTATION`."""
        if self._has_annotation(node, HOLDING_ANNOTATION):
            return
        if self._has_annotation(node, FAILING_ANNOTATION):
            failed_state = {
                **build_migration_end_fields(),
                "failed": True,
                "failureReason": "the target node is marked as failing",
            }
            self._patch_vmi(instance, {"migrationState": failed_state})
            return
        target_state = {"targetNodeDomainDetected": True, "targetNodeDomainReadyTimestamp": format_now()}
        state = {**target_state, **build_migration_end_fields()}
        location = {
            "nodeName": node,
            "evacuationNodeName": None,
        }  # If `evacuationNodeName` stayed set, virt-api would not request a migration in the next drain.
        self._patch_vmi(instance, {"migrationState": state, **location}, labels={NODE_NAME_LABEL: node})

    def _complete_pod(self, instance: Item, pod: Object) -> None:
        """Set the virt-launcher pod's phase to Succeeded, because its guest was migrated away."""
        terminated = {"exitCode": 0, "reason": "Completed", "startedAt": format_now(), "finishedAt": format_now()}
        containers = [
            {**container, "ready": False, "started": False, "state": {"running": None, "terminated": terminated}}
            for container in pod["status"].get("containerStatuses", [])
        ]
        unready = {"status": "False", "reason": "PodCompleted"}
        conditions = [
            {**condition, **(unready if condition["type"] in ("Ready", "ContainersReady") else {})}
            for condition in pod["status"].get("conditions", [])
        ]
        status = {"phase": "Succeeded", "containerStatuses": containers, "conditions": conditions}
        name = pod["metadata"]["name"]
        self._admin.patch(f"{get_pods_path(instance)}/{name}/status", {"status": status})
        self.completed.add(name)
        self.completed_at.append(time.monotonic())


def build_migration_end_fields() -> Object:
    """Build the fields of a VMI's `migrationState` that mark a migration as ended."""
    return {"endTimestamp": format_now(), "completed": True}


def build_handler_conditions(instance: Item) -> list[Object]:
    """Return a VMI's conditions with a new `LiveMigratable`; virt-controller writes the other conditions."""
    conditions: list[Object] = instance["status"].get("conditions") or []
    (migratable,) = (condition for condition in build_conditions(instance) if condition["type"] == LIVE_MIGRATABLE)
    if any(migratable.items() <= condition.items() for condition in conditions):
        return conditions
    # Without the timestamps, the API server would reject virt-controller's patches, which test the whole condition.
    times = {"lastProbeTime": format_now(), "lastTransitionTime": format_now()}
    return [*(condition for condition in conditions if condition["type"] != LIVE_MIGRATABLE), {**migratable, **times}]


def has_devices(node: Item) -> bool:
    """Return whether the node offers the devices that a virt-launcher pod requests."""
    return set(DEVICES) <= set(node["status"].get("allocatable", {}))


def is_schedulable(node: Item) -> bool:
    """Return whether virt-launcher pods can be scheduled to the node."""
    return has_devices(node) and SCHEDULABLE_LABEL in node["metadata"]["labels"]
