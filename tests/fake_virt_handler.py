"""KubeVirt's virt-handlers and launchers, played beside its real virt-controller. A fixture, never shipped.

As on a real node: it offers devices and says that machines may run there, boots a guest when its launcher is ready,
says whether that can be migrated, and brings a migration that the controller has handed over to its end. A launcher
whose guest has left completes by itself; nobody deletes its pod.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from functools import partial

from kube.door.sync_client import Cluster
from kube.nodes import NODES, node_path
from kube.paths import Object
from kube.pods import is_finished as is_over
from kube.pods import is_terminating, node_of
from kube.times import moment_or_none, timestamp
from kube.virtualization.machines import INSTANCES, MIGRATIONS, is_finished, key, vmi_of
from tests.virt_actor import (
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
"""Between two heartbeats; after five minutes without one the controller gives a node up."""
DEVICES = {f"devices.kubevirt.io/{name}": "1k" for name in ("kvm", "tun", "vhost-net")}
ABLE = "LiveMigratable"
HOST = "kubevirt.io/nodeName"
"""Label of an instance: its node."""
PORTS = {"49152": 0}
"""Where the target of a migration listens."""


class FakeVirtHandler(Actor):
    """Plays all of them for as long as its block lasts."""

    def __init__(self, admin: Cluster, seconds: float = 0.1) -> None:
        super().__init__(admin, seconds)
        self.completed: set[str] = set()
        """The launchers that have ended by themselves."""
        self.completed_at: list[float] = []

    def look(self) -> None:
        """Bring every node, instance and launcher one step on."""
        for node in self._admin.list(NODES, version="0")["items"]:
            self._tried(partial(self._register, node))
        migrations = {vmi_of(item): item for item in self._listed(MIGRATIONS) if not is_finished(item)}
        launchers = self._launchers()
        for instance in self._listed(INSTANCES):
            pods, migration = launchers.get(instance["metadata"]["uid"], []), migrations.get(key(instance))
            self._tried(partial(self._keep, instance, pods, migration))

    def _register(self, node: Object) -> None:
        """Have machines be scheduled to the node, and say that it is looked after."""
        path = node_path(node["metadata"]["name"])
        if not has_devices(node):
            self._admin.patch(f"{path}/status", {"status": {"capacity": DEVICES, "allocatable": DEVICES}})
        now = datetime.now(timezone.utc)
        beaten = moment_or_none((node["metadata"].get("annotations") or {}).get(HEARTBEAT))
        if beaten is None or now - beaten > BEATS:
            noted = {"labels": {SCHEDULABLE: "true"}, "annotations": {HEARTBEAT: timestamp(now)}}
            self._admin.patch(path, {"metadata": noted})

    def _keep(self, instance: Object, pods: list[Object], migration: Item | None) -> None:
        """Bring an instance one step on, and let the launchers end that it has left."""
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
        """Complete those that are neither the instance's home nor what it migrates to."""
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
        """What the target's virt-handler does, then the source's, with what the controller has handed over."""
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
        """The guest is on the target, or stays where it is."""
        if self._is_marked(node, HOLDING):
            return
        if self._is_marked(node, FAILING):
            failed = {**ended(), "failed": True, "failureReason": "the target is to fail"}
            self._write(instance, {"migrationState": failed})
            return
        seen = {"targetNodeDomainDetected": True, "targetNodeDomainReadyTimestamp": moment()}
        state = {**seen, **ended()}
        moved = {"nodeName": node, "evacuationNodeName": None}  # or virt-api would take the next drain for this one
        self._write(instance, {"migrationState": state, **moved}, labels={HOST: node})

    def _complete(self, instance: Item, pod: Object) -> None:
        """The guest has left: the launcher ends."""
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
    """What is said of a migration that is over, however it went."""
    return {"endTimestamp": moment(), "completed": True}


def told(instance: Item) -> list[Object]:
    """Its conditions, with what is ours to say of it: all else the controller says."""
    known: list[Object] = instance["status"].get("conditions") or []
    (able,) = (each for each in conditions(instance) if each["type"] == ABLE)
    if any(able.items() <= each.items() for each in known):
        return known
    # Without times the controller's patches would be refused: they expect what it would have written itself.
    times = {"lastProbeTime": moment(), "lastTransitionTime": moment()}
    return [*(each for each in known if each["type"] != ABLE), {**able, **times}]


def has_devices(node: Item) -> bool:
    """Whether the node offers what a launcher asks for."""
    return set(DEVICES) <= set(node["status"].get("allocatable", {}))


def is_offered(node: Item) -> bool:
    """Whether launchers may be scheduled to the node."""
    return has_devices(node) and SCHEDULABLE in node["metadata"]["labels"]
