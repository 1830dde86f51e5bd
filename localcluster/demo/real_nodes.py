"""`make demo-real`: runs the product as pods on two real nodes, and drains the node on which it runs.

The cluster has two kubelets with containerd, and Knative Eventing as pods. A short overlay sets the product's image.
The output combines kubectl's output and the NodeMaintenance's status from a watch.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from kube.paths import Object
from kube.text_limits import format_count
from localcluster.access import NAMESPACE
from localcluster.addons import EVENTING_ADDON
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
from localcluster.knative import pod_install
from localcluster.knative.install import EVENTING
from localcluster.nodes import preflight, product_image
from localcluster.nodes.real_nodes import RealNodes
from localcluster.programs import build

MAINTENANCE_NAME, NODE, OTHER_NODE = "demo", "real-1", "real-2"
TIMEOUT_SECONDS = 150.0
OTHER_NODE_PATCH = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": OTHER_NODE}}}}}
BASE_DIR = Path("/tmp")  # noqa: S108 - not TMPDIR, which may be in /var: each node has its own /var


class WebhookPlacement:
    """Add-on that places Knative's webhooks on the node that is not drained, so that the drain does not evict them."""

    def write_archives(self, directory: Path) -> list[Path]:
        """Return an empty list, because this add-on has no images."""
        return []

    def apply(self, cluster: LocalCluster) -> None:
        """Patch the webhooks' Deployments with a node selector."""
        for name in EVENTING.webhooks.values():
            run_kubectl(
                cluster, "patch", "deployment", "-n", EVENTING.namespace, name, "-p", json.dumps(OTHER_NODE_PATCH)
            )

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return immediately, because the Knative add-on waits for these Deployments."""


def main() -> int:
    """Run the demo; return 0 when the product has drained its own node and made it schedulable again."""
    preflight.check_host()
    build.build_all([build.KUBERNETES, build.NODES, build.KNATIVE])
    print_line("building the product's image from the Dockerfile, unless it exists: about a minute")
    product_image.ensure_archive()
    started = time.monotonic()
    print_line(
        "starting two real nodes with containerd, kubelet, kube-proxy and CoreDNS, and Knative Eventing as pods on them"
    )
    print_line(f"Knative's webhooks run on {OTHER_NODE}, since each takes a minute to terminate")
    with (
        tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-", dir=BASE_DIR) as folder,
        pod_install.start_real_cluster(Path(folder) / "cluster", addons=(EVENTING_ADDON, WebhookPlacement())) as (
            cluster,
            nodes,
        ),
    ):
        print_line(f"nodes and Knative are ready after {time.monotonic() - started:.1f} s")
        _install_product(cluster, Path(folder))
        print_line(f"the product is ready after {time.monotonic() - started:.1f} s")
        drain_product_node(cluster, nodes)
    print_line(f"everything that was started is stopped, after {time.monotonic() - started:.1f} s")
    return 0


def _install_product(cluster: LocalCluster, directory: Path) -> None:
    print_heading("Install the product with an overlay that sets the image")
    overlay = pod_install.write_overlay(directory / "overlay")
    print((overlay / "kustomization.yaml").read_text())
    run_kubectl(cluster, "apply", "-k", str(overlay))
    pod_install.wait_until_ready(cluster, pod_install.LATE_DEPLOYMENT)


def drain_product_node(cluster: LocalCluster, nodes: RealNodes) -> None:
    """Drain the node that runs the product, and make it schedulable again. Raises `DemoError` if that fails."""
    before = _list_pods(cluster)
    print_heading(f"Start the maintenance of {NODE}, where the product runs")
    for node, names in sorted(_count_accounts_by_node(before).items()):
        print_line(
            f"{node}: {', '.join(f'{name} x{count}' if count > 1 else name for name, count in sorted(names.items()))}"
        )
    leaving = [pod for pod in before if pod["spec"]["nodeName"] == NODE]
    apply_maintenance(cluster, MAINTENANCE_NAME, NODE)
    drained_seconds = follow_drain(
        cluster, MAINTENANCE_NAME, TIMEOUT_SECONDS, lambda after, line: print(f"  +{after:5.1f} s {line}")
    )
    show_kubectl(cluster, "get", "nodemaintenance.nodemaintenance.medik8s.io", "-o", "wide")
    check_pods_gone(cluster, nodes, leaving)
    summary = f"{format_count(len(leaving), 'pod')} of the product left {NODE} in {drained_seconds:.1f} s"
    print_line(f"{summary}; containerd runs none of their containers")
    print_heading(f"Make {NODE} schedulable again")
    show_kubectl(cluster, "delete", "nodemaintenance.nodemaintenance.medik8s.io", MAINTENANCE_NAME)
    _wait_until_schedulable(cluster)
    show_kubectl(cluster, "get", "nodes")


def _list_pods(cluster: LocalCluster) -> list[Object]:
    all_pods = json.loads(run_kubectl(cluster, "get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    return [pod for pod in all_pods if pod["spec"].get("nodeName")]


def _count_accounts_by_node(pods: list[Object]) -> dict[str, Counter[str]]:
    """Count the pods per node and ServiceAccount; each function and each source has its own ServiceAccount."""
    counts_by_node: dict[str, Counter[str]] = {}
    for pod in pods:
        counts_by_node.setdefault(pod["spec"]["nodeName"], Counter())[pod["spec"]["serviceAccountName"]] += 1
    return counts_by_node


def _wait_until_schedulable(cluster: LocalCluster) -> None:
    for change in cluster.watch("/api/v1/nodes", fields=f"metadata.name={NODE}", timeout=TIMEOUT_SECONDS):
        if not change.object["spec"].get("unschedulable") and not change.object["spec"].get("taints"):
            return
    raise DemoError(f'node "{NODE}": still unschedulable or tainted after the maintenance')


def check_pods_gone(cluster: LocalCluster, nodes: RealNodes, pods: list[Object]) -> None:
    """Raise `DemoError` if the API server or containerd still has one of these pods."""
    existing_uids = {pod["metadata"]["uid"] for pod in _list_pods(cluster)}
    node = nodes.get_node(NODE)
    for pod in pods:
        if pod["metadata"]["uid"] in existing_uids or node.list_running_containers(pod["metadata"]["uid"]):
            raise DemoError(f'pod "{pod["metadata"]["name"]}": still exists on node "{NODE}" after the drain')


if __name__ == "__main__":
    run_demo(main)
