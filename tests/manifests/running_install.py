"""Runs an applied install: its workloads are local processes, each with the ServiceAccount of its manifest."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import yaml

from localcluster.cluster import LocalCluster
from localcluster.function_server import FunctionConfig, build_function_server
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.processes import Server, Startable, await_ready, kill_all, reserve_port
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV
from tests.manifests.rendering import ROOT, Manifest, filter_by_kind
from tests.workload import build_pod

SERVING_FIELDS = ("containerConcurrency", "timeoutSeconds")
"""Fields in the pod template of a Knative Service that are for Serving, not for the pod."""
MIN_SCALE_ANNOTATION = "autoscaling.knative.dev/min-scale"
COMPONENT_SOURCE_ACCOUNTS = ("certificate-sources", "virtualization-sources", "cpu-label-sources")
"""Accounts of the sources that do not run here; one account watches all objects for the local delivery."""


class RunningInstall(Startable):
    """The functions of an install with one Service, and its sources and Triggers on the local delivery.

    Args:
        cluster: A cluster to which the install was applied.
        objects: The install's objects.
        directory: The directory for logs and databases.
    """

    def __init__(self, cluster: LocalCluster, objects: list[Manifest], directory: Path) -> None:
        functions, delivery = (f"http://{LOOPBACK}:{port}" for port in (reserve_port(), reserve_port()))
        self.broker_url, self.functions_url = delivery, functions
        self._urls = functions, delivery
        objects = [item for item in objects if _is_in_shared_process(item)]
        (service,) = filter_by_kind(objects, "Service")
        config = FunctionConfig(delivery, str(directory / "journal.db"), f"{functions}/record")
        identity, port = _get_kubeconfig(cluster, service), int(functions.rpartition(":")[2])
        self._servers = [
            build_function_server("functions", port, directory / "functions.log", identity, config),
            _build_delivery(cluster, objects, directory, functions, delivery),
        ]

    def _bring_up(self) -> None:
        """Start the functions and the local delivery; return when both are ready."""
        for server, url in zip(self._servers, self._urls, strict=True):
            server.start()
            await_ready(server.name, partial(is_ready, url), [server], timeout=30)

    def stop(self) -> None:
        """Kill both processes, the delivery first."""
        kill_all(self._servers)


def _is_in_shared_process(item: Manifest) -> bool:
    """Return whether the object belongs to the shared process and its chain.

    The webhook, and the function that renews certificates, do not run here.
    """
    labels = item["metadata"].get("labels") or {}
    account = (item.get("spec") or {}).get("serviceAccountName")
    return (
        labels.get("app.kubernetes.io/component") != "admission"
        and labels.get("nodemaintenance.dev/function") != "renew-certificates"
        and account not in COMPONENT_SOURCE_ACCOUNTS
    )


def _build_delivery(
    cluster: LocalCluster, objects: list[Manifest], directory: Path, functions: str, delivery: str
) -> Server:
    """Build the local delivery, which reads the applied manifests."""
    file = directory / "install.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    accounts = {_get_kubeconfig(cluster, item) for item in filter_by_kind(objects, "ApiServerSource")}
    (source,), (podsource,) = accounts, filter_by_kind(objects, "ContainerSource")
    environment = {
        **NO_PROXY_LOCAL_ENV,
        "KUBECONFIG": str(source),
        "PODSOURCE_KUBECONFIG": str(_get_kubeconfig(cluster, podsource)),
    }
    address_options = ("--listen", delivery.removeprefix("http://"), "--database", directory / "delivery.db")
    arguments = ("--manifests", file, "--functions", functions, *address_options)
    command: list[str | Path] = [sys.executable, "-m", "eventing.local.broker", *arguments]
    return Server("delivery", command, directory / "delivery.log", environment, ROOT)


def _get_kubeconfig(cluster: LocalCluster, item: Manifest) -> Path:
    """Return a kubeconfig of the ServiceAccount that an object uses."""
    spec = item["spec"]
    account = spec.get("serviceAccountName") or spec["template"]["spec"]["serviceAccountName"]
    return write_account_kubeconfig(cluster, item["metadata"]["namespace"], account)


def build_deployment(item: Manifest) -> Manifest:
    """Build the Deployment that Serving creates for a Knative Service, or Eventing for a ContainerSource.

    It lacks the fields that only their controllers use. Serving names the Deployment of the first revision
    NAME-00001-deployment, and runs `min-scale` pods.
    """
    template, name = item["spec"]["template"], item["metadata"]["name"]
    labels = {**template["metadata"]["labels"], "app": name}
    spec = {key: value for key, value in template["spec"].items() if key not in SERVING_FIELDS}
    is_service = item["kind"] == "Service"
    least = int(template["metadata"]["annotations"][MIN_SCALE_ANNOTATION]) if is_service else 1
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"{name}-00001-deployment" if is_service else name,
            "namespace": item["metadata"]["namespace"],
        },
        "spec": {
            "replicas": least,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def check_drain_and_restore(cluster: LocalCluster) -> None:
    """Check that the sample of the oldest API drains its node, and that its deletion uncordons the node."""
    sample = ROOT / "deploy" / "crds" / "nodemaintenance_cr.yaml"
    node = yaml.safe_load(sample.read_text())["spec"]["nodeName"]
    pod = {"apiVersion": "v1", "kind": "Pod", **build_pod(node, "web")}
    cluster.create_nodes(node)
    try:
        cluster.kubectl("create", "-n", "default", "-f", "-", input=json.dumps(pod))
        cluster.kubectl("wait", "-n", "default", "--for=condition=Ready", "pod/web", "--timeout=20s")

        cluster.kubectl("apply", "-f", sample)
        cluster.kubectl("wait", "--for=condition=Drained", "-f", sample, "--timeout=30s")

        assert cluster.kubectl("get", "pods", "-n", "default", "-o", "name").stdout == ""
        assert "SchedulingDisabled" in cluster.kubectl("get", "node", node).stdout

        cluster.kubectl("delete", "-f", sample, "--timeout=20s")

        assert "SchedulingDisabled" not in cluster.kubectl("get", "node", node).stdout
    finally:
        cluster.kubectl("delete", "node", node)
