"""`make demo`: drains a node from start to end on a temporary cluster; every printed line comes from the real system.

The output combines kubectl, the delivery's log (the events as they are delivered) and a watch on the NodeMaintenance.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from kube.text_limits import counted
from localcluster import product
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from localcluster.demo.event_log import Flow
from localcluster.demo.common import DemoError, apply_maintenance, follow_drain, kubectl, say, show, tell, title
from localcluster.product import Product
from localcluster.programs import build

HERE = Path(__file__).parent
NAME = "demo"
SECONDS = 60.0
"""Longest time without a status change before the demo fails."""


def main() -> int:
    """Run the demo; return 0 when the node was drained and made schedulable again."""
    started = time.monotonic()
    say("a cluster for this demo: etcd, API server, controller manager, scheduler, kwok")
    build.servers()
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-") as folder:
        _run(Path(folder), started)
    say("everything that was started is stopped")
    _look_next()
    return 0


def _run(folder: Path, started: float) -> None:
    with LocalCluster(folder / "cluster", nodes=3) as cluster:
        say(f"three nodes on a real API server, ready after {time.monotonic() - started:.1f} s")
        product.install(cluster)
        with Product(cluster, folder / "product") as running, Webhook(cluster, folder / "product"):
            say("CRDs and rights installed; functions, delivery and admission at work")
            _tell(cluster, running)


def _tell(cluster: LocalCluster, running: Product) -> None:
    node = _fill(cluster)
    with Flow(running.delivery_log, show=print) as flow:
        _maintain(cluster, node)
        drained = follow_drain(cluster, NAME, SECONDS, lambda _, line: flow.interleave(f"  {'':9} {line}"))
        show(cluster, "get", "nodemaintenance.nodemaintenance.medik8s.io", "-o", "wide")
        show(cluster, "get", "node", node)
        show(cluster, "get", "pods", "-n", "demo", "-o", "wide", "--field-selector", f"spec.nodeName={node}")
        _check(cluster, node, in_maintenance=True)
        title(f"Give {node} back")
        asked = time.monotonic()
        show(cluster, "delete", "nodemaintenance.nodemaintenance.medik8s.io", NAME)
        flow.await_type("dev.nodemaintenance.node.restored", SECONDS)
        restored = time.monotonic() - asked
        show(cluster, "get", "nodes")
        _check(cluster, node, in_maintenance=False)
    title("How long each step took")
    for line in flow.summary():
        print(f"  {line}")
    print(f"  created to Succeeded: {drained:.2f} s; deleted to node back: {restored:.2f} s")


def _fill(cluster: LocalCluster) -> str:
    """Create the workload; return the name of the node with the most pods."""
    title("A workload: Deployment behind a budget, DaemonSet, bare pod, emptyDir pod, static pod")
    kubectl(cluster, "apply", "-f", str(HERE / "demo.yaml"))
    kubectl(cluster, "rollout", "status", "-n", "demo", "deployment/web", "daemonset/agent", "--timeout=60s")
    kubectl(cluster, "wait", "-n", "demo", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
    pods = json.loads(kubectl(cluster, "get", "pods", "-n", "demo", "-o", "json"))["items"]
    node, count = Counter(pod["spec"]["nodeName"] for pod in pods).most_common(1)[0]
    say(f"{node} is the fullest: {counted(count, 'pod')}")
    return str(node)


def _maintain(cluster: LocalCluster, node: str) -> None:
    title("Refused at the door: a node that is not there")
    if "no node with name node-13 found" not in apply_maintenance(cluster, NAME, "node-13"):
        raise DemoError("a maintenance of an unknown node was not refused")
    title(f"Maintain {node}, and hear first what that costs")
    if "Warning: " not in apply_maintenance(cluster, NAME, node):
        raise DemoError("nothing was said of the pods that are lost")


def _check(cluster: LocalCluster, node: str, *, in_maintenance: bool) -> None:
    """Check that the node is cordoned and holds only pods that may stay, or else is schedulable and untainted.

    Raises `DemoError` otherwise.
    """
    spec = json.loads(kubectl(cluster, "get", "node", node, "-o", "json"))["spec"]
    if bool(spec.get("unschedulable")) != in_maintenance or bool(spec.get("taints")) != in_maintenance:
        raise DemoError(f"{node} is not as it should be: {spec}")
    if in_maintenance:
        pods = json.loads(
            kubectl(cluster, "get", "pods", "-A", "-o", "json", "--field-selector", f"spec.nodeName={node}")
        )
        left = {pod["metadata"]["name"].split("-")[0] for pod in pods["items"]}
        if not left <= {"agent", "static"}:
            raise DemoError(f"pods were left on {node}: {left}")


def _look_next() -> None:
    title("Where to look next")
    print("  make demo-mutex    Jobs before and behind the upgrade of each worker of OpenShift, one node at a time")
    print("  make demo-vm       virtual machines that move, restart or block when their node is drained")
    print("  make up            a cluster of your own, with the product on it; make down ends it")
    print("  config/samples/    NodeMaintenance objects to apply; put the name of a node of yours in")
    print("  manifests/base/    the Triggers and sources: the flow you just saw")
    print("  functions/         one step a file")
    print("  README.md          how to install on a cluster, how to replay an event")


if __name__ == "__main__":
    tell(main)
