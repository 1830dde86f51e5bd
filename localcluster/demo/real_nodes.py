"""`make demo-real`: runs the product as pods on two real nodes, and drains the node on which it runs.

Two kubelets with containerd, Knative Eventing as pods, and the product's image in a short overlay. The output combines
kubectl and a watch on the NodeMaintenance.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from kube.paths import Object
from kube.text_limits import counted
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.demo.common import DemoError, apply_maintenance, follow_drain, kubectl, say, show, tell, title
from localcluster.knative import pods, pod_install
from localcluster.knative.install import EVENTING
from localcluster.nodes import preflight, product_image
from localcluster.nodes.real_nodes import RealNodes
from localcluster.programs import build

NAME, NODE, OTHER = "demo", "real-1", "real-2"
SECONDS = 150.0
ON_THE_OTHER = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": OTHER}}}}}
FOLDER = Path("/tmp")  # noqa: S108 - a node has a /var of its own, where TMPDIR may be
COMES_LATE = "validate"
"""This Deployment's certificate reaches its pods only at the kubelets' next sync; the drain does not wait for it."""


class Placement:
    """Add-on that moves Knative's webhooks to the other node before they start; the drain then evicts none of them."""

    def archives(self, folder: Path) -> list[Path]:
        """Return no images; this add-on has none."""
        return []

    def apply(self, cluster: LocalCluster) -> None:
        """Patch the webhooks' Deployments with a node selector."""
        for name in pods.WEBHOOKS:
            kubectl(cluster, "patch", "deployment", "-n", EVENTING.namespace, name, "-p", json.dumps(ON_THE_OTHER))

    def await_ready(self, cluster: LocalCluster) -> None:
        """Return at once; the Knative add-on waits for these Deployments."""


def main() -> int:
    """Run the demo; return 0 when the product has drained its own node and made it schedulable again."""
    preflight.check()
    build.build_all([build.KUBERNETES, build.NODES, build.KNATIVE])
    say("our image, of the Dockerfile: built where it is not there yet, which takes a minute")
    product_image.archive()
    started = time.monotonic()
    say("two real nodes: containerd, kubelet, kube-proxy and CoreDNS; on them Knative Eventing, as pods")
    say(f"Knative's webhooks, each of which takes a minute to end, are kept on {OTHER}")
    with (
        tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-", dir=FOLDER) as folder,
        pod_install.nodes(Path(folder) / "cluster", parts=(pods, Placement())) as (cluster, nodes),
    ):
        say(f"ready after {time.monotonic() - started:.1f} s")
        _install(cluster, Path(folder))
        say(f"all of it is Ready after {time.monotonic() - started:.1f} s")
        drain(cluster, nodes)
    say(f"everything that was started is stopped, after {time.monotonic() - started:.1f} s")
    return 0


def _install(cluster: LocalCluster, folder: Path) -> None:
    title("Install: an overlay of ours, and the name of the image")
    overlay = pod_install.overlay(folder / "overlay")
    print((overlay / "kustomization.yaml").read_text())
    kubectl(cluster, "apply", "-k", str(overlay))
    pod_install.await_ready(cluster, COMES_LATE)


def drain(cluster: LocalCluster, nodes: RealNodes) -> None:
    """Show how the product's own node is drained and made schedulable again. Raises `DemoError` if that fails."""
    before = _pods(cluster)
    title(f"Maintain {NODE}, where the product runs")
    for node, names in sorted(_names(before).items()):
        say(f"{node}: {', '.join(f'{name} x{count}' if count > 1 else name for name, count in sorted(names.items()))}")
    leaving = [pod for pod in before if pod["spec"]["nodeName"] == NODE]
    apply_maintenance(cluster, NAME, NODE)
    drained = follow_drain(cluster, NAME, SECONDS, lambda after, line: print(f"  +{after:5.1f} s {line}"))
    show(cluster, "get", "nodemaintenance.nodemaintenance.medik8s.io", "-o", "wide")
    check(cluster, nodes, leaving)
    left = f"{counted(len(leaving), 'pod')} of ours left {NODE} in {drained:.1f} s"
    say(f"{left}; containerd runs none of their containers")
    title(f"Give {NODE} back")
    show(cluster, "delete", "nodemaintenance.nodemaintenance.medik8s.io", NAME)
    _until_open(cluster)
    show(cluster, "get", "nodes")


def _pods(cluster: LocalCluster) -> list[Object]:
    found = json.loads(kubectl(cluster, "get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    return [pod for pod in found if pod["spec"].get("nodeName")]


def _names(pods: list[Object]) -> dict[str, Counter[str]]:
    """Return, per node, the number of pods per ServiceAccount; each function and each source has its own account."""
    found: dict[str, Counter[str]] = {}
    for pod in pods:
        found.setdefault(pod["spec"]["nodeName"], Counter())[pod["spec"]["serviceAccountName"]] += 1
    return found


def _until_open(cluster: LocalCluster) -> None:
    for change in cluster.watch("/api/v1/nodes", fields=f"metadata.name={NODE}", seconds=SECONDS):
        if not change.object["spec"].get("unschedulable") and not change.object["spec"].get("taints"):
            return
    raise DemoError(f"{NODE} was not given back")


def check(cluster: LocalCluster, nodes: RealNodes, leaving: list[Object]) -> None:
    """Raise `DemoError` if the API server or containerd still has one of these pods."""
    there = {pod["metadata"]["uid"] for pod in _pods(cluster)}
    node = nodes.node(NODE)
    for pod in leaving:
        if pod["metadata"]["uid"] in there or node.running(pod["metadata"]["uid"]):
            raise DemoError(f"{pod['metadata']['name']} was left on {NODE}")


if __name__ == "__main__":
    tell(main)
