"""Simulates KubeVirt's virt-handlers and virt-launchers next to its real virt-controller. For tests only.

As on a real node, it advertises devices and marks the node as schedulable for VMIs. It boots a guest when its
virt-launcher pod is ready, reports whether the VMI can be migrated, and completes a migration that virt-controller has
handed over. A virt-launcher pod whose guest has left completes by itself, without a deletion.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from functools import partial

from kube.client.sync_client import Cluster
from kube.nodes import NODES, node_path
from kube.paths import Object
from kube.pods import is_finished as is_over
from kube.pods import is_terminating, node_of
from kube.times import moment_or_none, timestamp
from kube.virtualization.vmis import INSTANCES, MIGRATIONS, is_finished, key, vmi_of
from tests.fake_kubevirt_base import (
    BOOTED,
    FAILING,
    HOLDING,
    MIGRATION,
    Actor,
    Item,
    conditions,
    moment,
    phase,
    pods_of,
    running,
)

SCHEDULABLE = "kubevirt.io/schedulable"
HEARTBEAT = "kubevirt.io/heartbeat"
BEATS = timedelta(minutes=1)
"""Interval of the heartbeats; after five minutes without one, virt-controller treats the node as failed."""
DEVICES = {f"devices.kubevirt.io/{name}": "1k" for name in ("kvm", "tun", "vhost-net")}
ABLE = "LiveMigratable"
HOST = "kubevirt.io/nodeName"
"""Label of a VMI: the name of its node."""
PORTS = {"49152": 0}
"""Port at which a migration's target listens."""


class FakeVirtHandler(Actor):
    """A thread that simulates all virt-handlers while its `with` block runs."""

    def __init__(self, admin: Cluster, seconds: float = 0.1) -> None:
        super().__init__(admin, seconds)
        self.completed: set[str] = set()
        """Names of the virt-launcher pods that completed by themselves."""
        self.completed_at: list[float] = []

    def look(self) -> None:
        """Advance every node, VMI and virt-launcher pod by one step."""
        for node in self._admin.list(NODES, version="0")["items"]:
            self._tried(partial(self._register, node))
        migrations = {vmi_of(item): item for item in self._listed(MIGRATIONS) if not is_finished(item)}
        launchers = self._launchers()
        for instance in self._listed(INSTANCES):
            pods, migration = launchers.get(instance["metadata"]["uid"], []), migrations.get(key(instance))
            self._tried(partial(self._keep, instance, pods, migration))

    def _register(self, node: Object) -> None:
        """Make the node schedulable for VMIs, and write its heartbeat."""
        path = node_path(node["metadata"]["name"])
        if not has_devices(node):
            self._admin.patch(f"{path}/status", {"status": {"capacity": DEVICES, "allocatable": DEVICES}})
        now = datetime.now(timezone.utc)
        beaten = moment_or_none((node["metadata"].get("annotations") or {}).get(HEARTBEAT))
        if beaten is None or now - beaten > BEATS:
            noted = {"labels": {SCHEDULABLE: "true"}, "annotations": {HEARTBEAT: timestamp(now)}}
            self._admin.patch(path, {"metadata": noted})

    def _keep(self, instance: Object, pods: list[Object], migration: Item | None) -> None:
        """Advance a VMI by one step, and complete the virt-launcher pods that it has left."""
        alive = [pod for pod in pods if not is_terminating(pod) and not is_over(pod)]
        home = next((pod for pod in alive if node_of(pod) == instance.get("status", {}).get("nodeName")), None)
        if instance["metadata"].get("deletionTimestamp"):
            if phase(instance) in ("Scheduled", "Running"):
                self._write(instance, {"phase": "Succeeded"})
            return
        if home is not None and phase(instance) == "Scheduled":
            self._boot(instance, home)
        elif home is not None and phase(instance) == "Running":
            self._migrate(instance, migration)
            self._say_whether_able(instance)
            self._end_launchers(instance, alive, migration)

    def _end_launchers(self, instance: Item, alive: list[Object], migration: Item | None) -> None:
        """Complete the virt-launcher pods that are neither on the VMI's node nor the target of its migration."""
        uid = migration["metadata"]["uid"] if migration else ""
        for pod in alive:
            elsewhere = node_of(pod) not in ("", instance["status"]["nodeName"])
            if elsewhere and pod["metadata"]["labels"].get(MIGRATION) != uid:
                self._complete(instance, pod)

    def _boot(self, instance: Object, home: Object) -> None:
        now = moment()
        passed = [*instance["status"].get("phaseTransitionTimestamps", [])]
        passed.append({"phase": "Running", "phaseTransitionTimestamp": now})
        status = running(instance, home)
        status |= {"selinuxContext": "none", "phaseTransitionTimestamps": passed, "conditions": told(instance)}
        self._write(instance, status, annotations={BOOTED: f"{now} in {home['metadata']['uid']}"})

    def _say_whether_able(self, instance: Object) -> None:
        if told(instance) != instance["status"].get("conditions"):
            self._write(instance, {"conditions": told(instance)})

    def _migrate(self, instance: Object, migration: Item | None) -> None:
        """Do the next step of the target's virt-handler, then of the source's, in a migration that was handed over."""
        state = instance["status"].get("migrationState") or {}
        if state.get("abortRequested") and "endTimestamp" not in state:
            self._write(instance, {"migrationState": {**ended(), "failed": True, "abortStatus": "Succeeded"}})
        if migration is None or state.get("migrationUid") != migration["metadata"]["uid"] or "endTimestamp" in state:
            return
        if "targetNodeAddress" not in state:
            at = {"targetNodeAddress": "10.0.0.1", "targetDirectMigrationNodePorts": PORTS}
            self._write(instance, {"migrationState": at})
        elif "startTimestamp" not in state:
            self._write(instance, {"migrationState": {"startTimestamp": moment()}})
        elif (migration.get("status") or {}).get("phase") == "Running":
            self._end(instance, state["targetNode"])

    def _end(self, instance: Object, node: str) -> None:
        """Move the guest to the target, or fail the migration if the target node is marked as failing."""
        if self._is_marked(node, HOLDING):
            return
        if self._is_marked(node, FAILING):
            failed = {**ended(), "failed": True, "failureReason": "the target is to fail"}
            self._write(instance, {"migrationState": failed})
            return
        seen = {"targetNodeDomainDetected": True, "targetNodeDomainReadyTimestamp": moment()}
        state = {**seen, **ended()}
        moved = {"nodeName": node, "evacuationNodeName": None}  # else virt-api takes the next drain for this one
        self._write(instance, {"migrationState": state, **moved}, labels={HOST: node})

    def _complete(self, instance: Item, pod: Object) -> None:
        """Set the virt-launcher pod to Succeeded, because its guest has left."""
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": moment(), "finishedAt": moment()}
        containers = [
            {**each, "ready": False, "started": False, "state": {"running": None, "terminated": ended}}
            for each in pod["status"].get("containerStatuses", [])
        ]
        unready = {"status": "False", "reason": "PodCompleted"}
        conditions = [
            {**each, **(unready if each["type"] in ("Ready", "ContainersReady") else {})}
            for each in pod["status"].get("conditions", [])
        ]
        status = {"phase": "Succeeded", "containerStatuses": containers, "conditions": conditions}
        name = pod["metadata"]["name"]
        self._admin.patch(f"{pods_of(instance)}/{name}/status", {"status": status})
        self.completed.add(name)
        self.completed_at.append(time.monotonic())


def ended() -> Object:
    """Return the migration state fields of a finished migration."""
    return {"endTimestamp": moment(), "completed": True}


def told(instance: Item) -> list[Object]:
    """Return the VMI's conditions with this handler's `LiveMigratable`; the others are virt-controller's."""
    known: list[Object] = instance["status"].get("conditions") or []
    (able,) = (each for each in conditions(instance) if each["type"] == ABLE)
    if any(able.items() <= each.items() for each in known):
        return known
    # Without timestamps the API server would reject virt-controller's patches, which test for the whole condition.
    times = {"lastProbeTime": moment(), "lastTransitionTime": moment()}
    return [*(each for each in known if each["type"] != ABLE), {**able, **times}]


def has_devices(node: Item) -> bool:
    """Return whether the node offers the devices that a virt-launcher pod requests."""
    return set(DEVICES) <= set(node["status"].get("allocatable", {}))


def is_offered(node: Item) -> bool:
    """Return whether virt-launcher pods can be scheduled to the node."""
    return has_devices(node) and SCHEDULABLE in node["metadata"]["labels"]
