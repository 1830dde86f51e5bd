"""Knative Eventing's own manifests, from its Go module: read, fitted to this machine, applied."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from localcluster import build
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError

HERE = Path(__file__).parent
MODULE = "knative.dev/eventing"
NAMESPACE = "knative-eventing"
NODE = "localcluster/for=knative"
# Lets the API server call webhooks at the addresses of a Service's endpoints, for there is no kube-proxy; and puts
# every pod of a namespace on the node that its annotations say, so that no drain touches Knative's pods.
APISERVER_FLAGS = (
    "--enable-aggregator-routing=true",
    "--enable-admission-plugins=PodNodeSelector,PodTolerationRestriction",
)
PLACE = (
    f"scheduler.alpha.kubernetes.io/node-selector={NODE}",
    'scheduler.alpha.kubernetes.io/defaultTolerations=[{"operator":"Exists"}]',
)
ROOMS = ("config/core", "config/brokers/mt-channel-broker", "config/channels/in-memory-channel")
MORE = ("third_party/eventing-integrations-latest",)
LEFT_OUT = {"HorizontalPodAutoscaler", "StatefulSet", "PodDisruptionBudget"}
UNUSED = {"job-sink", "request-reply"}
"""Deployments of features that we do not use."""
FIRST = ("Namespace", "CustomResourceDefinition")
"""Kinds that the rest stands on."""

Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    """Give all objects of Knative Eventing that are needed here."""
    module = build.module_folder("knative", MODULE)
    files = [file for room in (*ROOMS, *MORE) for file in sorted((module / room).rglob("*.yaml"))]
    return [item for file in files for item in _objects(file)]


def _objects(file: Path) -> Iterator[Manifest]:
    for item in yaml.safe_load_all(file.read_text()):
        if item and item["kind"] not in LEFT_OUT and item["metadata"]["name"] not in UNUSED:
            yield item


def apply(cluster: LocalCluster, items: list[Manifest]) -> None:
    """Apply objects as their owner."""
    text = yaml.safe_dump_all(items)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)


def place(cluster: LocalCluster, namespace: str) -> None:
    """Keep the pods of a namespace on the node that no drain touches."""
    cluster.kubectl("annotate", "--overwrite", "namespace", namespace, *PLACE)


def install(cluster: LocalCluster, webhook_ports: dict[str, int]) -> None:
    """Install all of it; a webhook's configuration names nothing to judge until the webhook itself fills it in.

    In: the port at which each webhook's Service is answered by a process of this machine.
    """
    cluster.kubectl("apply", "-f", HERE / "node.yaml")
    found = manifests()
    for kind in FIRST:
        apply(cluster, [item for item in found if item["kind"] == kind])
    place(cluster, NAMESPACE)
    rest = [item for item in found if item["kind"] not in FIRST]
    for item in rest:
        if item["kind"] == "Service" and item["metadata"]["name"] in webhook_ports:
            del item["spec"]["selector"]  # its endpoint is not a pod
    apply(cluster, [*rest, *(_endpoint(name, port) for name, port in webhook_ports.items())])
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")


def _endpoint(service: str, port: int) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": service, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "https-webhook", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
    }


def own_address() -> str:
    """Give an address of this machine that is not loopback, which an EndpointSlice may not hold."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: nobody's; choosing a route sends nothing
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        raise LocalClusterError("Knative's webhooks need an address of this machine that is not loopback; it has none")
    return address
