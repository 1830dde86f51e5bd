"""`make demo-vm`: drains a node with one virtual machine of each kind, then changes the nodes' CPU labels.

A fake KubeVirt starts, migrates and restarts the virtual machines; everything else is the real product.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kube.cpu.node_patch import MODEL
from kube.client.api import Api
from kube.client.list_watch import Change, follow, merged
from kube.maintenance.groups import MEDIK8S
from kube.nodes import NODES
from kube.paths import Object
from kube.virtualization.vmis import INSTANCES
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS
from localcluster import delivery_engines
from localcluster.cluster import LocalCluster
from localcluster.demo.event_log import Flow
from localcluster.demo.common import DemoError, drain_line, maintenance, say, show, tell, title
from localcluster.demo.uptimes import Uptime, counters, outcomes, told, uptime
from localcluster.product import Product
from localcluster.components.fakes import Actors
from localcluster.components.selection import CPU_LABELS, MAINTENANCE, VIRTUALIZATION

STORY, CPUS = (Path(__file__).with_name(name) for name in ("machines.yaml", "cpus.yaml"))
WINGS = (MAINTENANCE, VIRTUALIZATION, CPU_LABELS)
NODE, NODE_COUNT = "node-1", 3
FORETOLD = {"live": MOVES, "pinned": BLOCKS, "always": RESTARTS, "rerun": RESTARTS, "manual": STOPS}
"""The forecast that the preview must show for each virtual machine, and that the drain must then confirm."""
STUCK = "pinned"
NOT_MIGRATABLE = "NotMigratable"
KEPT, OBSOLETE = "Penryn", "Haswell"
SECONDS = 60.0
"""Longest time that one part of the demo may take."""
WIDTH = 9
"""Length of the longest function name."""


@dataclass
class Scene:
    """The state that the demo watches.

    Attributes:
        status: The status of the NodeMaintenance.
        uptimes: The uptime of each virtual machine, by name.
    """

    status: Object = field(default_factory=dict)
    uptimes: dict[str, Uptime] = field(default_factory=dict)

    def take(self, change: Change) -> str:
        """Apply a change of a NodeMaintenance or a VMI; return a line to print, "" if the line would not change."""
        item, name = change.object, change.object["metadata"]["name"]
        if item["kind"] == "NodeMaintenance":
            before, self.status = self.status, item.get("status") or {}
            line = drain_line(self.status)
            return line if line != drain_line(before) else ""
        was, now = self.uptimes.get(name, Uptime()), Uptime() if change.kind == "DELETED" else uptime(item)
        self.uptimes[name] = now
        became = told(was, now)
        return f"{name} {became}" if became else ""

    def blocked(self) -> list[str]:
        """Return the reasons of the pods that block the drain, or an empty list while other pods are still pending."""
        found = [item["reason"] for item in self.status.get("blockedPods") or []]
        return found if len(found) == self.status.get("pendingCount") else []

    def run(self, *names: str) -> bool:
        """Return whether all these virtual machines run."""
        return all(self.uptimes.get(name, Uptime()).boot for name in names)


def main() -> int:
    """Run the demo; return 0 if the drain matched the preview for each virtual machine and the CPU labels followed."""
    started = time.monotonic()
    say("a cluster for this demo: etcd, API server, controller manager, scheduler, kwok; KubeVirt is played")
    engine = delivery_engines.named("local")
    engine.build(WINGS)
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-") as folder:
        where = Path(folder)
        with engine.cluster(where / "cluster", NODE_COUNT) as cluster:
            say(f"three nodes on a real API server after {time.monotonic() - started:.1f} s")
            with engine.open(cluster, where / "product", WINGS) as product, Actors(cluster, where / "product", WINGS):
                say("KubeVirt's and our CRDs installed; functions, delivery and fake-virt at work")
                _tell(cluster, product)
    say("everything that was started is stopped")
    return 0


def _tell(cluster: LocalCluster, product: delivery_engines.Running) -> None:
    if not isinstance(product, Product):
        raise TypeError("the flow of events is read from the local delivery's log")
    with Flow(product.delivery_log, width=WIDTH) as all_along:
        scene = Scene()
        _start_machines(cluster, scene)
        _preview(cluster)
        before = dict(scene.uptimes)
        with Flow(product.delivery_log, show=print, width=WIDTH) as flow:
            _drain(cluster, scene, flow)
        title("What was said before, and what came of it")
        for line in outcomes(NODE, FORETOLD, before, scene.uptimes):
            print(f"  {line}")
        title(f"Give {NODE} back; no machine moves back by itself")
        maintenance(cluster, "stop", NODE)
        show(cluster, "get", "vmi", "-n", "demo")
        _label(cluster)
    title("How long each step took")
    for line in all_along.summary():
        print(f"  {line}")


def _start_machines(cluster: LocalCluster, scene: Scene) -> None:
    title(f"A virtual machine of each kind, all of them on {NODE}")
    show(cluster, "apply", "-f", str(STORY))
    _follow(cluster, scene, lambda: scene.run(*FORETOLD))
    show(cluster, "get", "vmi", "-n", "demo")


def _preview(cluster: LocalCluster) -> None:
    title("What a drain would do with them, said before anything is changed")
    maintenance(cluster, "start", NODE, "--dry-run")
    maintenance(cluster, "status", NODE)
    found = json.loads(maintenance(cluster, "status", NODE, "-o", "json", silent=True))["virtualMachines"]
    if (said := {each["name"]: each["drain"] for each in found}) != FORETOLD:
        raise DemoError(f"the preview said {said}, and not {FORETOLD}")


def _drain(cluster: LocalCluster, scene: Scene, flow: Flow) -> None:
    """Drain the node until only one virtual machine blocks; then make it migratable, so that the drain continues."""
    title(f"Maintain {NODE}")
    maintenance(cluster, "start", NODE, "--reason", "a new power supply")
    restarted = [name for name, drain in FORETOLD.items() if drain == RESTARTS]
    _follow(cluster, scene, lambda: scene.blocked() == [NOT_MIGRATABLE] and scene.run(*restarted), flow.interleave)
    title(f"All have left but {STUCK}, which blocks and says why")
    maintenance(cluster, "status", NODE)
    title("Its disk is shared from now on: the drain goes on by itself")
    asked = time.monotonic()
    show(cluster, "annotate", "vmi", STUCK, "-n", "demo", "fake-virt/not-migratable-")
    _follow(cluster, scene, lambda: scene.status.get("phase") == "Succeeded", flow.interleave)
    say(f"Succeeded {time.monotonic() - asked:.1f} s later")


def _follow(cluster: LocalCluster, scene: Scene, done: Callable[[], bool], line: Callable[[str], None] = print) -> None:
    """Print each change and the virtual machines' uptimes until `done` returns true."""

    async def watch(api: Api) -> None:
        streams = follow(api, MEDIK8S.path), follow(api, INSTANCES)
        async with aclosing(merged(*streams)) as changes:
            async for _, change in changes:
                if change.kind != "SYNCED" and (news := scene.take(change)):
                    line(f"  {'':9} {news}")
                    line(f"  {'':9}   {counters(scene.uptimes, datetime.now(timezone.utc))}")
                if done():
                    return

    _within_time(cluster, watch, "machines and maintenance did not become as they should")


def _label(cluster: LocalCluster) -> None:
    """Label the nodes with the capabilities of their CPUs, then mark a CPU model as obsolete."""
    title(f"The labels of CPUs, by which machines find a node: {KEPT} and {OBSOLETE}, which becomes obsolete")
    show(cluster, "apply", "-f", str(CPUS))
    _await_labels(cluster, {KEPT: NODE_COUNT, OBSOLETE: NODE_COUNT})
    columns = ("get", "nodes", "-L", f"{MODEL}{KEPT},{MODEL}{OBSOLETE}")
    show(cluster, *columns)
    wish = json.dumps({"spec": {"obsoleteCPUs": {"cpuModels": [OBSOLETE]}}})
    show(cluster, "patch", "hyperconverged", "kubevirt-hyperconverged", "-n", "demo", "--type=merge", "-p", wish)
    asked = time.monotonic()
    _await_labels(cluster, {KEPT: NODE_COUNT, OBSOLETE: 0})
    say(f"all nodes follow after {time.monotonic() - asked:.1f} s")
    show(cluster, *columns)


def _await_labels(cluster: LocalCluster, wanted: Mapping[str, int]) -> None:
    """Return once the label of each CPU model is on the given number of nodes."""
    labels: dict[str, Mapping[str, str]] = {}

    async def watch(api: Api) -> None:
        async with aclosing(follow(api, NODES)) as changes:
            async for change in changes:
                if change.kind != "SYNCED":
                    labels[change.object["metadata"]["name"]] = change.object["metadata"]["labels"]
                if all(sum(MODEL + name in own for own in labels.values()) == n for name, n in wanted.items()):
                    return

    _within_time(cluster, watch, f"the nodes were not labelled with {dict(wanted)}")


def _within_time(cluster: LocalCluster, watch: Callable[[Api], Coroutine[Any, Any, None]], trouble: str) -> None:
    """Run the watch to its end. Raises `DemoError` after `SECONDS`."""
    door = cluster.door()
    try:
        door.run(asyncio.wait_for(watch(door.api), SECONDS))
    except asyncio.TimeoutError:
        raise DemoError(f"{trouble} within {SECONDS:.0f} s") from None


if __name__ == "__main__":
    tell(main)
