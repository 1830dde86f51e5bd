"""*fake-virt*: simulates the part of KubeVirt that a drain depends on. For tests only.

A VirtualMachine gets its VMI according to its run strategy. A VMI gets a virt-launcher pod, which kwok runs. A
migration (VMIM) creates a second virt-launcher pod on another node and moves the VMI there. An annotation on the VMI
decides whether it can be migrated. Another annotation records the guest's boot: a migration keeps it, a restart
replaces it. The state is read from the cluster only, so the process can be killed and restarted at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from kube.budgets import CREATED_BY
from kube.paths import Object
from kube.pods import is_ready, is_terminating
from kube.virtualization.vmis import API_VERSION, INSTANCES, MIGRATIONS, is_finished, key, vmi_of
from tests.fake_kubevirt_base import (
    BOOTED,
    FAILING,
    HOLDING,
    MIGRATION,
    Actor,
    Item,
    conditions,
    interfaces,
    moment,
    path_of,
    phase,
    pods_of,
    running,
)

MACHINES = f"/apis/{API_VERSION}/virtualmachines"
LAUNCHER = {"kubevirt.io": "virt-launcher"}
FIRST_NODE = "fake-virt/first-node"
"""On a VirtualMachine or VMI: the node of its first virt-launcher pod. Without it, the scheduler chooses."""
RESTARTED = ("Always", "Running", "RerunOnFailure")
"""Run strategies for which a failed VMI is created again. `Running` is a document's spelling (C15)."""

SHOWN = {"Running": "Running", "Stopped": "Stopped", "Failed": "Stopped"}
"""Phase of the VMI → `printableStatus` of the VirtualMachine; any other phase is `Starting`."""


class FakeVirt(Actor):
    """A thread that simulates KubeVirt while its `with` block runs."""

    watched: ClassVar[Mapping[str, str]] = {**Actor.watched, MACHINES: ""}

    def look(self) -> None:
        """Advance every VirtualMachine, VMI and migration by one step."""
        machines, instances, migrations = (self._listed(path) for path in (MACHINES, INSTANCES, MIGRATIONS))
        launchers = self._launchers()
        known = {key(each): each for each in instances}
        for machine in machines:
            self._tried(partial(self._run, machine, known.get(key(machine))))
            self._tried(partial(self._report, machine, known.get(key(machine))))
        for instance in instances:
            self._tried(partial(self._launch, instance, launchers.get(instance["metadata"]["uid"], [])))
        for pod in self._stranded(migrations, known, launchers):
            self._tried(partial(self._take_away, pod))
        for migration in migrations:
            moved = known.get(vmi_of(migration))
            if not is_finished(migration) and moved is None:
                self._tried(partial(self._say, migration, {"phase": "Failed"}))
            elif not is_finished(migration) and moved is not None:
                self._tried(partial(self._migrate, migration, moved, launchers.get(moved["metadata"]["uid"], [])))

    def _stranded(
        self, migrations: list[Object], known: Mapping[Any, Object], launchers: Mapping[str, list[Object]]
    ) -> list[Object]:
        """Return the virt-launcher pods of deleted migrations, except those on the VMI's node."""
        there = ("", *(migration["metadata"]["uid"] for migration in migrations))
        homes = {
            instance["metadata"]["uid"]: (instance.get("status") or {}).get("nodeName") for instance in known.values()
        }
        return [
            pod
            for uid, home in homes.items()
            for pod in launchers.get(uid, [])
            if pod["metadata"]["labels"].get(MIGRATION, "") not in there and pod["spec"].get("nodeName") != home
        ]

    def _take_away(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._admin.delete(path, uid=metadata["uid"])

    def _run(self, machine: Object, instance: Object | None) -> None:
        """Create the VMI of a VirtualMachine if its run strategy requires one; delete a failed VMI first."""
        strategy, metadata = strategy_of(machine), machine["metadata"]
        if instance is not None and phase(instance) == "Failed" and strategy in RESTARTED:
            self._admin.delete(path_of(instance, "virtualmachineinstances"), uid=instance["metadata"]["uid"])
        if instance is not None or strategy not in (*RESTARTED, "Manual"):
            return
        if strategy == "Manual" and (machine.get("status") or {}).get("created"):
            return
        where = f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/virtualmachineinstances"
        self._admin.create(where, instance_of(machine))
        self._admin.patch(f"{path_of(machine, 'virtualmachines')}/status", {"status": {"created": True}})

    def _report(self, machine: Object, instance: Object | None) -> None:
        """Write the VirtualMachine's status, which `kubectl get vm` prints."""
        said = machine.get("status") or {}
        at = phase(instance) if instance is not None else "Stopped"
        ready = {"type": "Ready", "status": "True" if at == "Running" else "False"}
        shown = {"ready": at == "Running", "printableStatus": SHOWN.get(at, "Starting"), "conditions": [ready]}
        if {name: said.get(name) for name in shown} != shown:
            self._admin.patch(f"{path_of(machine, 'virtualmachines')}/status", {"status": shown})

    def _launch(self, instance: Object, launchers: list[Object]) -> None:
        """Advance a VMI from creation to Running, and to Failed when its virt-launcher pod is gone."""
        at, metadata = phase(instance), instance["metadata"]
        if metadata.get("deletionTimestamp") or at == "Failed":
            return
        home = next((pod for pod in launchers if MIGRATION not in pod["metadata"]["labels"]), None)
        if at == "Running":
            self._watch_over(instance, launchers)
        elif home is None:
            name = f"virt-launcher-{metadata['name']}-{metadata['uid'][:5]}"
            first = (metadata.get("annotations") or {}).get(FIRST_NODE)
            self._admin.create(pods_of(instance), launcher(name, instance, {"nodeName": first} if first else {}, {}))
            self._write(instance, {"phase": "Scheduling"})
        elif is_ready(home):
            boot = {BOOTED: f"{moment()} in {home['metadata']['uid']}"}
            self._write(instance, running(instance, home), annotations=boot)

    def _watch_over(self, instance: Object, launchers: list[Object]) -> None:
        """End a VMI without a virt-launcher pod on its node; update the conditions of a running one."""
        node = instance["status"]["nodeName"]
        if not any(pod["spec"].get("nodeName") == node and not is_terminating(pod) for pod in launchers):
            if instance["metadata"].get("ownerReferences"):
                off = {"interfaces": None, "conditions": conditions(instance, ready=False)}
                self._write(instance, {"phase": "Failed", **off})
            else:
                self._admin.delete(path_of(instance, "virtualmachineinstances"), uid=instance["metadata"]["uid"])
        elif instance["status"].get("conditions") != conditions(instance):
            self._write(instance, {"conditions": conditions(instance)})

    def _migrate(self, migration: Object, instance: Object, launchers: list[Object]) -> None:
        """Advance a migration by one step: create the target pod, report Running, then finish."""
        uid, source = migration["metadata"]["uid"], (instance.get("status") or {}).get("nodeName")
        target = next((pod for pod in launchers if pod["metadata"]["labels"].get(MIGRATION) == uid), None)
        at = (migration.get("status") or {}).get("phase")
        if target is None:
            name = f"virt-launcher-{instance['metadata']['name']}-{uid[:5]}"
            body = launcher(name, instance, {"affinity": away_from(str(source))}, {MIGRATION: uid})
            self._admin.create(pods_of(instance), body)
            self._say(migration, {"phase": "Scheduling"})
        elif is_ready(target) and at != "Running":
            state = {"sourceNode": source, "targetNode": target["spec"]["nodeName"], "startTimestamp": moment()}
            self._write(instance, {"migrationState": {"migrationUid": uid, **state}})
            self._say(migration, {"phase": "Running", "migrationState": state})
        elif is_ready(target) and not self._is_marked(target["spec"]["nodeName"], HOLDING):
            self._end(migration, instance, target, [pod for pod in launchers if pod is not target])

    def _end(self, migration: Object, instance: Object, target: Object, others: list[Object]) -> None:
        """Finish a migration: move the VMI and delete the source pod, or fail if the target node is marked failing."""
        node = target["spec"]["nodeName"]
        failed = self._is_marked(node, FAILING)
        state = {**migration["status"]["migrationState"], "endTimestamp": moment(), "completed": True}
        state |= {"failed": True} if failed else {}
        told = {} if failed else {"nodeName": node, "interfaces": interfaces(target)}
        self._write(instance, {"migrationState": {**instance["status"]["migrationState"], **state}, **told})
        self._say(migration, {"phase": "Failed" if failed else "Succeeded", "migrationState": state})
        for pod in [target] if failed else others:
            self._admin.delete(f"{pods_of(instance)}/{pod['metadata']['name']}", uid=pod["metadata"]["uid"])

    def _say(self, migration: Object, status: Object) -> None:
        path = path_of(migration, "virtualmachineinstancemigrations")
        self._admin.patch(f"{path}/status", {"status": status})


def strategy_of(machine: Item) -> str:
    """Return the run strategy of a VirtualMachine; `running: true` is the same as Always (C15)."""
    spec = machine["spec"]
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


def instance_of(machine: Item) -> Object:
    """Build the VMI of a VirtualMachine."""
    metadata, template = machine["metadata"], machine["spec"]["template"]
    owner = {"apiVersion": API_VERSION, "kind": "VirtualMachine", "name": metadata["name"], "uid": metadata["uid"]}
    made = {"name": metadata["name"], "ownerReferences": [{**owner, "controller": True}]}
    noted = {"annotations": template.get("metadata", {}).get("annotations") or {}}
    first = {} if (machine.get("status") or {}).get("created") else {FIRST_NODE: first_node(machine)}
    noted["annotations"] = {**noted["annotations"], **{name: value for name, value in first.items() if value}}
    kind = "VirtualMachineInstance"
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {**made, **noted}, "spec": template["spec"]}


def first_node(machine: Item) -> str:
    """Return the node of a VirtualMachine's first start, "" for any node."""
    return str((machine["metadata"].get("annotations") or {}).get(FIRST_NODE) or "")


def launcher(name: str, instance: Item, spec: Object, labels: Mapping[str, str]) -> Object:
    """Build a virt-launcher pod of a VMI."""
    metadata = instance["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": instance["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {
            "name": name,
            "labels": {**LAUNCHER, CREATED_BY: metadata["uid"], **labels},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"containers": [{"name": "compute", "image": "fake"}], **spec},
    }


def away_from(node: str) -> Object:
    """Build an affinity that excludes a node."""
    off = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [off]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
