"""`make demo-vm`: drains a node with one virtual machine of each kind, then changes the nodes' CPU labels.

A fake KubeVirt starts, migrates and restarts the virtual machines; the rest is the real product.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from kube.client.api import Api
from kube.client.list_watch import Change, follow, merge_streams
from kube.cpu_labels.node_patch import MODEL_LABEL_PREFIX
from kube.maintenance.groups import MEDIK8S
from kube.nodes import NODES_PATH
from kube.paths import Object
from kube.times import parse_time_or_none
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS
from kube.virtualization.vmis import VMIS_PATH, get_node_name, is_running
from localcluster import delivery_engines
from localcluster.cluster import LocalCluster
from localcluster.components.fakes import Fakes
from localcluster.components.selection import CPU_LABELS, MAINTENANCE, VIRTUALIZATION
from localcluster.demo.common import (
    DemoError,
    format_drain_status,
    print_heading,
    print_line,
    run_demo,
    run_maintenance_command,
    show_kubectl,
)
from localcluster.demo.event_log import EventLogFollower
from localcluster.product import Product

VMS_MANIFEST, CPUS_MANIFEST = (Path(__file__).with_name(name) for name in ("machines.yaml", "cpus.yaml"))
COMPONENTS = (MAINTENANCE, VIRTUALIZATION, CPU_LABELS)
NODE, NODE_COUNT = "node-1", 3
PREVIEW = {"live": MOVES, "pinned": BLOCKS, "always": RESTARTS, "rerun": RESTARTS, "manual": STOPS}
"""The forecast that the preview must show for each virtual machine, and with which the drain must agree."""
BLOCKED_VM = "pinned"
NOT_MIGRATABLE = "NotMigratable"
KEPT_MODEL, OBSOLETE_MODEL = "Penryn", "Haswell"
TIMEOUT_SECONDS = 60.0
"""Longest time that one part of the demo may take."""
FUNCTION_NAME_WIDTH = 9
"""Length of the longest function name."""
BOOTED_ANNOTATION = "fake-virt/booted"
"""Annotation of a VMI with its boot time and its virt-launcher pod; it does not change until the VMI stops."""


@dataclass
class DemoState:
    """The observed state of the NodeMaintenance and of the virtual machines.

    Attributes:
        status: The status of the NodeMaintenance.
        uptimes: The uptime of each virtual machine, by name.
    """

    status: Object = field(default_factory=dict)
    uptimes: dict[str, Uptime] = field(default_factory=dict)

    def apply_change(self, change: Change) -> str:
        """Apply a change of a NodeMaintenance or a VMI; return a line to print, or "" if the line did not change."""
        changed_object, name = change.object, change.object["metadata"]["name"]
        if changed_object["kind"] == "NodeMaintenance":
            before, self.status = self.status, changed_object.get("status") or {}
            line = format_drain_status(self.status)
            return line if line != format_drain_status(before) else ""
        was = self.uptimes.get(name, Uptime())
        now = Uptime() if change.change_type == "DELETED" else read_uptime(changed_object)
        self.uptimes[name] = now
        description = describe_uptime_change(was, now)
        return f"{name} {description}" if description else ""

    def list_blocking_reasons(self) -> list[str]:
        """Return the reasons of the pods that block the drain, or an empty list while other pods are still pending."""
        reasons = [item["reason"] for item in self.status.get("blockedPods") or []]
        return reasons if len(reasons) == self.status.get("pendingCount") else []

    def are_running(self, *names: str) -> bool:
        """Return whether all virtual machines with these names run."""
        return all(self.uptimes.get(name, Uptime()).boot_id for name in names)


def main() -> int:
    """Run the demo; return 0 if each virtual machine was drained as previewed and the CPU labels were updated."""
    started = time.monotonic()
    print_line(
        "starting a temporary cluster: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok, "
        "and a simulator of KubeVirt"
    )
    engine = delivery_engines.get_engine("local")
    engine.build(COMPONENTS)
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-") as folder:
        directory = Path(folder)
        with engine.create_cluster(directory / "cluster", NODE_COUNT) as cluster:
            print_line(f"a real API server and three fake nodes are ready after {time.monotonic() - started:.1f} s")
            with (
                engine.install_product(cluster, directory / "product", COMPONENTS) as product,
                Fakes(cluster, directory / "product", COMPONENTS),
            ):
                print_line("installed KubeVirt's and the product's CRDs; functions, delivery and fake-virt are ready")
                _drain_vms_and_label_cpus(cluster, product)
    print_line("everything that was started is stopped")
    return 0


def _drain_vms_and_label_cpus(cluster: LocalCluster, product: delivery_engines.RunningProduct) -> None:
    if not isinstance(product, Product):
        raise TypeError("product must be a localcluster.product.Product: the demo reads the local delivery's log")
    with EventLogFollower(product.delivery_log, width=FUNCTION_NAME_WIDTH) as whole_log:
        state = DemoState()
        _start_vms(cluster, state)
        _check_preview(cluster)
        before = dict(state.uptimes)
        with EventLogFollower(product.delivery_log, print_line=print, width=FUNCTION_NAME_WIDTH) as event_log:
            _drain_node(cluster, state, event_log)
        print_heading("The forecast and the outcome")
        for line in check_outcomes(NODE, PREVIEW, before, state.uptimes):
            print(f"  {line}")
        print_heading(f"Make {NODE} schedulable again; no virtual machine moves back automatically")
        run_maintenance_command(cluster, "stop", NODE)
        show_kubectl(cluster, "get", "vmi", "-n", "demo")
        _label_cpus(cluster)
    print_heading("Duration of each step")
    for line in whole_log.summarize_calls():
        print(f"  {line}")


def _start_vms(cluster: LocalCluster, state: DemoState) -> None:
    print_heading(f"Create one virtual machine of each kind on {NODE}")
    show_kubectl(cluster, "apply", "-f", str(VMS_MANIFEST))
    _print_changes_until(cluster, state, lambda: state.are_running(*PREVIEW))
    show_kubectl(cluster, "get", "vmi", "-n", "demo")


def _check_preview(cluster: LocalCluster) -> None:
    print_heading("Preview what a drain would do with the virtual machines")
    run_maintenance_command(cluster, "start", NODE, "--dry-run")
    run_maintenance_command(cluster, "status", NODE)
    vms = json.loads(run_maintenance_command(cluster, "status", NODE, "-o", "json", quiet=True))["virtualMachines"]
    if (preview := {vm["name"]: vm["drain"] for vm in vms}) != PREVIEW:
        raise DemoError(f'node "{NODE}": the preview must be {PREVIEW}, but is {preview}')


def _drain_node(cluster: LocalCluster, state: DemoState, event_log: EventLogFollower) -> None:
    """Drain the node until only one virtual machine blocks the drain; then make this VM migratable, and continue."""
    print_heading(f"Start the maintenance of {NODE}")
    run_maintenance_command(cluster, "start", NODE, "--reason", "a new power supply")
    restarted = [name for name, drain in PREVIEW.items() if drain == RESTARTS]
    _print_changes_until(
        cluster,
        state,
        lambda: state.list_blocking_reasons() == [NOT_MIGRATABLE] and state.are_running(*restarted),
        event_log.print_between_entries,
    )
    print_heading(f"All virtual machines except {BLOCKED_VM} have left; the status states why it blocks the drain")
    run_maintenance_command(cluster, "status", NODE)
    print_heading(f"Make the disk of {BLOCKED_VM} shared; the drain continues automatically")
    annotated_at = time.monotonic()
    show_kubectl(cluster, "annotate", "vmi", BLOCKED_VM, "-n", "demo", "fake-virt/not-migratable-")
    _print_changes_until(
        cluster, state, lambda: state.status.get("phase") == "Succeeded", event_log.print_between_entries
    )
    print_line(f"the maintenance is Succeeded after {time.monotonic() - annotated_at:.1f} s")


def _print_changes_until(
    cluster: LocalCluster, state: DemoState, is_done: Callable[[], bool], print_line: Callable[[str], None] = print
) -> None:
    """Print each change, followed by the virtual machines' uptimes, until `is_done` returns true."""

    async def watch(api: Api) -> None:
        streams = follow(api, MEDIK8S.path), follow(api, VMIS_PATH)
        async with aclosing(merge_streams(*streams)) as changes:
            async for _, change in changes:
                if change.change_type != "SYNCED" and (line := state.apply_change(change)):
                    print_line(f"  {'':9} {line}")
                    print_line(f"  {'':9}   {format_uptimes(state.uptimes, datetime.now(timezone.utc))}")
                if is_done():
                    return

    _run_with_timeout(cluster, watch, "virtual machines and NodeMaintenance did not reach the expected state")


def _label_cpus(cluster: LocalCluster) -> None:
    """Label the nodes with the capabilities of their CPUs, then mark a CPU model as obsolete."""
    print_heading(
        f"Label the nodes with the CPU models {KEPT_MODEL} and {OBSOLETE_MODEL}; then make {OBSOLETE_MODEL} obsolete"
    )
    show_kubectl(cluster, "apply", "-f", str(CPUS_MANIFEST))
    _wait_for_labels(cluster, {KEPT_MODEL: NODE_COUNT, OBSOLETE_MODEL: NODE_COUNT})
    columns = ("get", "nodes", "-L", f"{MODEL_LABEL_PREFIX}{KEPT_MODEL},{MODEL_LABEL_PREFIX}{OBSOLETE_MODEL}")
    show_kubectl(cluster, *columns)
    patch = json.dumps({"spec": {"obsoleteCPUs": {"cpuModels": [OBSOLETE_MODEL]}}})
    show_kubectl(
        cluster, "patch", "hyperconverged", "kubevirt-hyperconverged", "-n", "demo", "--type=merge", "-p", patch
    )
    patched_at = time.monotonic()
    _wait_for_labels(cluster, {KEPT_MODEL: NODE_COUNT, OBSOLETE_MODEL: 0})
    print_line(f"the labels of all nodes changed after {time.monotonic() - patched_at:.1f} s")
    show_kubectl(cluster, *columns)


def _wait_for_labels(cluster: LocalCluster, expected_counts: Mapping[str, int]) -> None:
    """Wait until each CPU model's label is on the expected number of nodes."""
    labels_by_node: dict[str, Mapping[str, str]] = {}

    async def watch(api: Api) -> None:
        async with aclosing(follow(api, NODES_PATH)) as changes:
            async for change in changes:
                if change.change_type != "SYNCED":
                    labels_by_node[change.object["metadata"]["name"]] = change.object["metadata"]["labels"]
                if all(
                    sum(MODEL_LABEL_PREFIX + model in labels for labels in labels_by_node.values()) == expected_count
                    for model, expected_count in expected_counts.items()
                ):
                    return

    _run_with_timeout(
        cluster, watch, f"CPU model labels did not reach the expected node counts {dict(expected_counts)}"
    )


def _run_with_timeout(cluster: LocalCluster, watch: Callable[[Api], Coroutine[Any, Any, None]], message: str) -> None:
    """Run `watch` until it returns. Raises `DemoError` with `message` after `TIMEOUT_SECONDS`."""
    client = cluster.get_client()
    try:
        client.run(asyncio.wait_for(watch(client.api), TIMEOUT_SECONDS))
    except asyncio.TimeoutError:
        raise DemoError(f"{message} within {TIMEOUT_SECONDS:.0f} s") from None


class Uptime(NamedTuple):
    """The node on which a virtual machine runs, and the id of its latest boot; both are "" while the VM is down."""

    node: str = ""
    boot_id: str = ""


Uptimes = Mapping[str, Uptime]
"""Uptimes by the names of the virtual machines."""


def read_uptime(instance: Object) -> Uptime:
    """Return the uptime from a VMI object."""
    if not is_running(instance):
        return Uptime()
    return Uptime(get_node_name(instance), str(instance["metadata"]["annotations"][BOOTED_ANNOTATION]))


def format_uptimes(uptimes: Uptimes, now: datetime) -> str:
    """Return one line with every virtual machine's uptime and node."""
    return "   ".join(f"{name} {_format_uptime(uptime, now)}" for name, uptime in sorted(uptimes.items()))


def _format_uptime(uptime: Uptime, now: datetime) -> str:
    booted = parse_time_or_none(uptime.boot_id.split()[0]) if uptime.boot_id else None
    return f"up {max(0, int((now - booted).total_seconds()))} s on {uptime.node}" if booted else "down"


def describe_uptime_change(before: Uptime, after: Uptime) -> str:
    """Describe a virtual machine's latest change, "" if it did not change."""
    if not after.boot_id:
        return "is shut down" if before.boot_id else ""
    if not before.boot_id:
        return f"boots on {after.node}"
    if before.boot_id != after.boot_id:
        return f"reboots on {after.node}"
    return f"moves from {before.node} to {after.node} without interruption" if before.node != after.node else ""


def check_outcomes(node: str, preview: Mapping[str, str], before: Uptimes, after: Uptimes) -> Iterator[str]:
    """Yield one line per virtual machine with its forecast and its outcome. Raises `DemoError` if they differ."""
    for name, forecast in sorted(preview.items()):
        was, now = before[name], after.get(name, Uptime())
        has_moved = now.boot_id == was.boot_id and now.node not in ("", node)
        has_restarted = now.boot_id not in ("", was.boot_id) and now.node != node
        outcomes = {
            MOVES: (has_moved, f"moved to {now.node} without interruption"),
            BLOCKS: (has_moved, f"blocked until it could be migrated, then moved to {now.node} without interruption"),
            RESTARTS: (has_restarted, f"was shut down, and started again on {now.node}"),
            STOPS: (not now.boot_id, "was shut down, and stays down until a user starts it"),
        }
        has_happened, outcome = outcomes[forecast]
        if not has_happened:
            raise DemoError(
                f'virtual machine "{name}": the preview forecast is {forecast}, but it was {was} and is now {now}'
            )
        yield f"{name:8} {forecast:9} {outcome}"


if __name__ == "__main__":
    run_demo(main)
