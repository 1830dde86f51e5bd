"""`make demo`: drains a node on a temporary cluster, and makes it schedulable again.

The output combines kubectl's output, the local delivery's log, and the NodeMaintenance's status from a watch.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from kube.text_limits import format_count
from localcluster import product
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from localcluster.demo.common import (
    DemoError,
    apply_maintenance,
    follow_drain,
    print_heading,
    print_line,
    run_demo,
    run_kubectl,
    show_kubectl,
)
from localcluster.demo.event_log import EventLogFollower
from localcluster.product import Product
from localcluster.programs import build

HERE = Path(__file__).parent
MAINTENANCE_NAME = "demo"
TIMEOUT_SECONDS = 60.0
"""Seconds without a change of the status after which the demo fails."""


def main() -> int:
    """Run the demo; return 0 when the node was drained and made schedulable again."""
    started = time.monotonic()
    print_line("starting a temporary cluster: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok")
    build.ensure_programs()
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-") as folder:
        _run_on_cluster(Path(folder), started)
    print_line("everything that was started is stopped")
    _print_next_steps()
    return 0


def _run_on_cluster(directory: Path, started: float) -> None:
    with LocalCluster(directory / "cluster", nodes=3) as cluster:
        print_line(f"a real API server and three fake nodes are ready after {time.monotonic() - started:.1f} s")
        product.install_manifests(cluster)
        with Product(cluster, directory / "product") as running, Webhook(cluster, directory / "product"):
            print_line("installed the CRDs and RBAC; functions, delivery and admission webhook are ready")
            _drain_and_restore_node(cluster, running)


def _drain_and_restore_node(cluster: LocalCluster, running_product: Product) -> None:
    node = _deploy_workload(cluster)
    with EventLogFollower(running_product.delivery_log, print_line=print) as event_log:
        _create_maintenance(cluster, node)
        drained_seconds = follow_drain(
            cluster,
            MAINTENANCE_NAME,
            TIMEOUT_SECONDS,
            lambda _, line: event_log.print_between_entries(f"  {'':9} {line}"),
        )
        show_kubectl(cluster, "get", "nodemaintenance.nodemaintenance.medik8s.io", "-o", "wide")
        show_kubectl(cluster, "get", "node", node)
        show_kubectl(cluster, "get", "pods", "-n", "demo", "-o", "wide", "--field-selector", f"spec.nodeName={node}")
        _check_node(cluster, node, in_maintenance=True)
        print_heading(f"Make {node} schedulable again")
        deleted_at = time.monotonic()
        show_kubectl(cluster, "delete", "nodemaintenance.nodemaintenance.medik8s.io", MAINTENANCE_NAME)
        event_log.wait_for_events("dev.nodemaintenance.node.restored", TIMEOUT_SECONDS)
        restored_seconds = time.monotonic() - deleted_at
        show_kubectl(cluster, "get", "nodes")
        _check_node(cluster, node, in_maintenance=False)
    print_heading("Duration of each step")
    for line in event_log.summarize_calls():
        print(f"  {line}")
    print(
        f"  from creation to Succeeded: {drained_seconds:.2f} s; from deletion to schedulable: {restored_seconds:.2f} s"
    )


def _deploy_workload(cluster: LocalCluster) -> str:
    """Create the workload; return the name of the node with the most pods."""
    print_heading("Create a Deployment with a PDB, a DaemonSet, a bare pod, an emptyDir pod and a static pod")
    run_kubectl(cluster, "apply", "-f", str(HERE / "demo.yaml"))
    run_kubectl(cluster, "rollout", "status", "-n", "demo", "deployment/web", "daemonset/agent", "--timeout=60s")
    run_kubectl(cluster, "wait", "-n", "demo", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
    pods = json.loads(run_kubectl(cluster, "get", "pods", "-n", "demo", "-o", "json"))["items"]
    node, count = Counter(pod["spec"]["nodeName"] for pod in pods).most_common(1)[0]
    print_line(f"{node} has the most pods: {format_count(count, 'pod')}")
    return str(node)


def _create_maintenance(cluster: LocalCluster, node: str) -> None:
    print_heading("The admission webhook rejects an unknown node")
    if "no node with name node-13 found" not in apply_maintenance(cluster, MAINTENANCE_NAME, "node-13"):
        raise DemoError(f'NodeMaintenance "{MAINTENANCE_NAME}": the webhook did not reject the unknown node "node-13"')
    print_heading(f"Start the maintenance of {node}; the webhook warns about pods and data that will be lost")
    if "Warning: " not in apply_maintenance(cluster, MAINTENANCE_NAME, node):
        raise DemoError(
            f'NodeMaintenance "{MAINTENANCE_NAME}": the webhook did not warn about the pods that will be lost'
        )


def _check_node(cluster: LocalCluster, node: str, *, in_maintenance: bool) -> None:
    """Check whether the node is cordoned and tainted. Raises `DemoError` if the result differs from `in_maintenance`.

    During the maintenance, the function also checks that only pods which a drain does not evict are left on the node.
    """
    spec = json.loads(run_kubectl(cluster, "get", "node", node, "-o", "json"))["spec"]
    if bool(spec.get("unschedulable")) != in_maintenance or bool(spec.get("taints")) != in_maintenance:
        raise DemoError(
            f'node "{node}": unexpected spec {"during" if in_maintenance else "after"} the maintenance: {spec}'
        )
    if in_maintenance:
        pods = json.loads(
            run_kubectl(cluster, "get", "pods", "-A", "-o", "json", "--field-selector", f"spec.nodeName={node}")
        )
        remaining = {pod["metadata"]["name"].split("-")[0] for pod in pods["items"]}
        if not remaining <= {"agent", "static"}:
            raise DemoError(f'node "{node}": pods remain after the drain: {", ".join(sorted(remaining))}')


def _print_next_steps() -> None:
    print_heading("Next steps")
    print("  make demo-mutex    Jobs before and after the upgrade of each OpenShift worker, one node at a time")
    print("  make demo-vm       virtual machines that move, restart or block when their node is drained")
    print("  make up            a cluster of your own with the product; `make down` stops it")
    print("  config/samples/    NodeMaintenance objects to apply; insert the name of your node")
    print("  manifests/base/    the Triggers and event sources of this demo")
    print("  functions/         the steps, one file each")
    print("  README.md          how to install the product on a cluster")


if __name__ == "__main__":
    run_demo(main)
