"""Knative's own manifests, from its Go modules: reads them, adapts them to this host, and applies them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import LOADER
from localcluster.cluster import LocalCluster
from localcluster.programs import build
from localcluster.errors import LocalClusterError

HERE = Path(__file__).parent
NODE = "localcluster/for=knative"
# Aggregator routing makes the API server call webhooks at their endpoints' addresses, since kube-proxy is absent. The
# admission plugins put every pod of a namespace on the node that the namespace's annotations select, so that no drain
# touches Knative's pods.
APISERVER_FLAGS = (
    "--enable-aggregator-routing=true",
    "--enable-admission-plugins=PodNodeSelector,PodTolerationRestriction",
)
PLACE = (
    f"scheduler.alpha.kubernetes.io/node-selector={NODE}",
    'scheduler.alpha.kubernetes.io/defaultTolerations=[{"operator":"Exists"}]',
)
OF_PODS = frozenset({"HorizontalPodAutoscaler", "PodDisruptionBudget"})
"""Kinds that have no meaning for a Deployment whose pods are processes."""
FIRST = ("Namespace", "CustomResourceDefinition")
"""Kinds that must be applied before all others."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A Knative project, limited to what is needed here.

    Attributes:
        tools: Its programs.
        folder: The directory of `localcluster` with the go.mod that requires `module`.
        module: The Go module with the project's manifests.
        namespace: The namespace that it is installed in.
        rooms: Paths of manifest files and directories in the module.
        controllers: The Deployments that run as processes.
        webhooks: The Services of the admission webhooks, each with the Deployment that serves it.
        trial: Objects for a dry run, which shows that the webhooks answer for each API group.
        unused: Names of objects of features that the product does not use.
    """

    tools: build.Toolset
    folder: str
    module: str
    namespace: str
    rooms: tuple[str, ...]
    controllers: tuple[str, ...]
    webhooks: Mapping[str, str]
    trial: Path
    unused: frozenset[str] = frozenset()

    def manifests(self, left_out: frozenset[str] = OF_PODS) -> list[Manifest]:
        """Return the project's manifests that are needed here, without those of the excluded kinds."""
        module = build.module_folder(self.folder, self.module)
        found = [module / room for room in self.rooms]
        files = [file for path in found for file in (sorted(path.rglob("*.yaml")) if path.is_dir() else [path])]
        return [item for file in files for item in self._objects(file, left_out)]

    def _objects(self, file: Path, left_out: frozenset[str]) -> Iterator[Manifest]:
        for item in yaml.load_all(file.read_text(), Loader=LOADER):
            if item and item["kind"] not in left_out and item["metadata"]["name"] not in self.unused:
                yield item


EVENTING = Part(
    tools=build.KNATIVE,
    folder="knative",
    module="knative.dev/eventing",
    namespace="knative-eventing",
    rooms=(
        *("config/core", "config/brokers/mt-channel-broker", "config/channels/in-memory-channel"),
        "third_party/eventing-integrations-latest",
    ),
    controllers=("eventing-controller", "mt-broker-controller"),
    webhooks={"eventing-webhook": "eventing-webhook", "inmemorychannel-webhook": "imc-controller"},
    trial=HERE / "trial.yaml",
    unused=frozenset({"job-sink", "request-reply"}),
)
SERVING = Part(
    tools=build.SERVING,
    folder="serving",
    module="knative.dev/serving",
    namespace="knative-serving",
    rooms=tuple(
        f"config/core/{room}"
        for room in (
            *("100-namespace.yaml", "200-serviceaccount.yaml", "200-roles", "300-resources"),
            *("configmaps", "webhooks", "deployments/webhook.yaml"),
        )
    ),
    controllers=(),
    webhooks={"webhook": "webhook"},
    trial=HERE.parent / "serving" / "trial.yaml",
)
"""Knative Serving's admission webhook only; no pod of a Knative Service runs here."""


def apply(cluster: LocalCluster, items: list[Manifest]) -> None:
    """Apply objects, taking over the ownership of their fields."""
    cluster.apply(items, "--force-conflicts")


def halves(items: list[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """Split the objects into those that must be applied first and the rest."""
    return [item for item in items if item["kind"] in FIRST], [item for item in items if item["kind"] not in FIRST]


def place(cluster: LocalCluster, namespace: str) -> None:
    """Keep the pods of a namespace on the node that is never drained."""
    cluster.kubectl("annotate", "--overwrite", "namespace", namespace, *PLACE)


def install(cluster: LocalCluster, part: Part, ports: Mapping[str, int]) -> None:
    """Install a project. Its webhooks fill in their own webhook configurations later, when they start.

    Args:
        part: The project.
        ports: The local port that serves each webhook's Service.
    """
    cluster.kubectl("apply", "-f", HERE / "node.yaml")
    found = part.manifests()
    for kind in FIRST:
        apply(cluster, [item for item in found if item["kind"] == kind])
    place(cluster, part.namespace)
    rest = [item for item in found if item["kind"] not in FIRST]
    for item in rest:
        if item["kind"] == "Service" and item["metadata"]["name"] in part.webhooks:
            del item["spec"]["selector"]  # its endpoint is not a pod
    endpoints = [_endpoint(part.namespace, service, ports[service]) for service in part.webhooks]
    apply(cluster, [*rest, *endpoints])
    cluster.await_kinds()


def _endpoint(namespace: str, service: str, port: int) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": service, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "https-webhook", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
    }


def own_address() -> str:
    """Return a non-loopback address of this host, since an EndpointSlice must not contain a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: a reserved address; choosing a route sends no packet
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        raise LocalClusterError("Knative's webhooks need an address of this machine that is not loopback; it has none")
    return address
