"""Runs an applied install: its workloads are local processes with the ServiceAccounts in their manifests."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import yaml

from localcluster.cluster import LocalCluster
from localcluster.function_server import FunctionConfig, build_function_server
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.processes import Server, Startable, kill_all, reserve_port, wait_until_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV
from tests.manifests.rendering import ROOT, Manifest, filter_by_kind
from tests.workload import build_pod

SERVING_FIELDS = ("containerConcurrency", "timeoutSeconds")
"""Fields in the pod template of a Knative Service that only Knative Serving uses."""
MIN_SCALE_ANNOTATION = "autoscaling.knative.dev/min-scale"
COMPONENT_SOURCE_ACCOUNTS = ("certificate-sources", "virtualization-sources", "cpu-label-sources")
"""ServiceAccounts of event sources that do not run here; the local delivery uses one account for all of them."""


class RunningInstall(Startable):
    """The functions of an install with a single Service; the local delivery runs the install's sources and Triggers.

    Args:
        cluster: A cluster to which the install was applied.
        objects: The install's objects.
        directory: The directory for logs and databases.
    """

    def __init__(self, cluster: LocalCluster, objects: list[Manifest], directory: Path) -> None:
        functions, delivery = (f"http://{LOOPBACK}:{port}" for port in (reserve_port(), reserve_port()))
        self.broker_url, self.functions_url = delivery, functions
        self._urls = functions, delivery
        objects = [manifest for manifest in objects if _is_in_shared_process(manifest)]
        (service,) = filter_by_kind(objects, "Service")
        config = FunctionConfig(delivery, str(directory / "journal.db"), f"{functions}/record")
        kubeconfig, port = _get_kubeconfig(cluster, service), int(functions.rpartition(":")[2])
        self._servers = [
            build_function_server("functions", port, directory / "functions.log", kubeconfig, config),
            _build_delivery(cluster, objects, directory, functions, delivery),
        ]

    def _start_and_wait(self) -> None:
        """Start the functions and the local delivery, and wait until both are ready."""
        for server, url in zip(self._servers, self._urls, strict=True):
            server.start()
            wait_until_ready(server.name, partial(is_ready, url), [server], timeout=30)

    def stop(self) -> None:
        """Kill both processes; the local delivery is killed first."""
        kill_all(self._servers)


def _is_in_shared_process(manifest: Manifest) -> bool:
    """Return whether the object belongs to the process that serves all functions, or to its sources and Triggers.

    The admission webhook and the function `renew-certificates` do not run here.
    """
    labels = manifest["metadata"].get("labels") or {}
    account = (manifest.get("spec") or {}).get("serviceAccountName")
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
    accounts = {_get_kubeconfig(cluster, source) for source in filter_by_kind(objects, "ApiServerSource")}
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


def _get_kubeconfig(cluster: LocalCluster, workload: Manifest) -> Path:
    """Write a kubeconfig for the ServiceAccount of a workload, and return its path."""
    spec = workload["spec"]
    account = spec.get("serviceAccountName") or spec["template"]["spec"]["serviceAccountName"]
    return write_account_kubeconfig(cluster, workload["metadata"]["namespace"], account)


def build_deployment(workload: Manifest) -> Manifest:
    """Build the Deployment that Serving creates for a Knative Service, or Eventing for a ContainerSource.

    Fields that only these controllers use are missing. Serving names the Deployment of the first revision
    NAME-00001-deployment, and runs `min-scale` pods.
    """
    template, name = workload["spec"]["template"], workload["metadata"]["name"]
    labels = {**template["metadata"]["labels"], "app": name}
    spec = {key: value for key, value in template["spec"].items() if key not in SERVING_FIELDS}
    is_service = workload["kind"] == "Service"
    replicas = int(template["metadata"]["annotations"][MIN_SCALE_ANNOTATION]) if is_service else 1
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"{name}-00001-deployment" if is_service else name,
            "namespace": workload["metadata"]["namespace"],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def check_drain_and_restore(cluster: LocalCluster) -> None:
    """Check that the oldest API group's sample drains its node, and that deleting the sample uncordons the node."""
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
