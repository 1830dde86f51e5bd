"""Knative's own manifests, from its Go modules: read, fitted to this machine, applied."""

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
from localcluster.trouble import LocalClusterError

HERE = Path(__file__).parent
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
OF_PODS = frozenset({"HorizontalPodAutoscaler", "PodDisruptionBudget"})
"""What means nothing to a Deployment whose pods are processes."""
FIRST = ("Namespace", "CustomResourceDefinition")
"""Kinds that the rest stands on."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One of Knative's projects, as far as it is needed here.

    Attributes:
        tools: its programs.
        folder: the folder beside this one with the go.mod that names `module`.
        module: the Go module that holds its own manifests.
        namespace: where it is installed.
        rooms: folders and files of manifests in the module.
        controllers: Deployments that run as processes.
        webhooks: Services of the admission webhooks, and the Deployment that answers each.
        trial: what is created in a dry run, to see that its webhooks answer for each API group.
        unused: objects of features that we do not use.
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
        """Give all its objects that are needed here, but for those of these kinds."""
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
"""Its admission webhook alone: no pod of a Knative Service runs here."""


def apply(cluster: LocalCluster, items: list[Manifest]) -> None:
    """Apply objects as their owner."""
    cluster.apply(items, "--force-conflicts")


def halves(items: list[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """What the rest stands on, and the rest: each is applied as a whole."""
    return [item for item in items if item["kind"] in FIRST], [item for item in items if item["kind"] not in FIRST]


def place(cluster: LocalCluster, namespace: str) -> None:
    """Keep the pods of a namespace on the node that no drain touches."""
    cluster.kubectl("annotate", "--overwrite", "namespace", namespace, *PLACE)


def install(cluster: LocalCluster, part: Part, ports: Mapping[str, int]) -> None:
    """Install a part; a webhook's configuration names nobody to ask until the webhook itself fills it in.

    In: the port at which each webhook's Service is answered by a process of this machine.
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
