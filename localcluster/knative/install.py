"""Reads Knative's manifests from its Go modules, adapts them to this host, and applies them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.programs import build

HERE = Path(__file__).parent
NODE_LABEL = "localcluster/for=knative"
# Without kube-proxy, aggregator routing makes the API server call webhooks at their endpoints' addresses. The admission
# plugins put every pod of a namespace on the node that the namespace's annotations select. So Knative's pods are on a
# node that is never drained.
APISERVER_FLAGS = (
    "--enable-aggregator-routing=true",
    "--enable-admission-plugins=PodNodeSelector,PodTolerationRestriction",
)
PLACEMENT_ANNOTATIONS = (
    f"scheduler.alpha.kubernetes.io/node-selector={NODE_LABEL}",
    'scheduler.alpha.kubernetes.io/defaultTolerations=[{"operator":"Exists"}]',
)
POD_ONLY_KINDS = frozenset({"HorizontalPodAutoscaler", "PodDisruptionBudget"})
"""Kinds that have no meaning for a Deployment whose pods are processes."""
PREREQUISITE_KINDS = ("Namespace", "CustomResourceDefinition")
"""Kinds that must be applied before all others."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class KnativeProject:
    """A Knative project, limited to the parts that a local cluster needs.

    Attributes:
        name: The project's name: the last part of its Go module's path.
        toolset: The toolset that builds the project's binaries.
        go_module_dir: The directory in `localcluster` with the go.mod that requires the project's Go modules.
        namespace: The namespace in which the project is installed.
        manifest_paths: For each Go module, the paths of manifest files and directories in the module.
        controllers: The controllers' Deployments, which run as processes.
        webhooks: The Services of the admission webhooks, each with the Deployment that serves it.
        dry_run_file: Objects of each API group; a dry run of them shows that the webhooks respond.
        excluded_names: Names of objects that only features outside of the product's use need.
    """

    name: str
    toolset: build.Toolset
    go_module_dir: str
    namespace: str
    manifest_paths: Mapping[str, tuple[str, ...]]
    controllers: tuple[str, ...]
    webhooks: Mapping[str, str]
    dry_run_file: Path
    excluded_names: frozenset[str] = frozenset()

    def load_manifests(self, excluded_kinds: frozenset[str] = POD_ONLY_KINDS) -> list[Manifest]:
        """Return the project's manifests, without those that have an excluded name or kind."""
        paths = [
            build.download_program_module(self.go_module_dir, module) / path
            for module, module_paths in self.manifest_paths.items()
            for path in module_paths
        ]
        files = [file for path in paths for file in (sorted(path.rglob("*.yaml")) if path.is_dir() else [path])]
        return [manifest for file in files for manifest in self._load_objects(file, excluded_kinds)]

    def _load_objects(self, file: Path, excluded_kinds: frozenset[str]) -> Iterator[Manifest]:
        for manifest in yaml.load_all(file.read_text(), Loader=YAML_LOADER):
            if (
                manifest
                and manifest["kind"] not in excluded_kinds
                and manifest["metadata"]["name"] not in self.excluded_names
            ):
                yield manifest


EVENTING = KnativeProject(
    name="eventing",
    toolset=build.KNATIVE,
    go_module_dir="knative",
    namespace="knative-eventing",
    manifest_paths={
        "knative.dev/eventing": (
            *("config/core", "config/brokers/mt-channel-broker", "config/channels/in-memory-channel"),
            "third_party/eventing-integrations-latest",
        )
    },
    controllers=("eventing-controller", "mt-broker-controller"),
    webhooks={"eventing-webhook": "eventing-webhook", "inmemorychannel-webhook": "imc-controller"},
    dry_run_file=HERE / "trial.yaml",
    excluded_names=frozenset({"job-sink", "request-reply"}),
)
SERVING = KnativeProject(
    name="serving",
    toolset=build.SERVING,
    go_module_dir="serving",
    namespace="knative-serving",
    manifest_paths={
        "knative.dev/serving": ("config/core",),
        # In Serving's repository, these files are symbolic links, which the zip file of a Go module does not contain.
        "knative.dev/networking": tuple(
            f"config/{name}.yaml"
            for name in ("certificate", "domain-claim", "ingress", "serverlessservice", "config-network")
        ),
        "knative.dev/caching": ("config/image.yaml",),
    },
    controllers=(),
    webhooks={"webhook": "webhook"},
    dry_run_file=HERE.parent / "serving" / "trial.yaml",
)
SERVING_WEBHOOK = replace(
    SERVING,
    manifest_paths={
        "knative.dev/serving": tuple(
            f"config/core/{name}"
            for name in (
                *("100-namespace.yaml", "200-serviceaccount.yaml", "200-roles", "300-resources"),
                *("configmaps", "webhooks", "deployments/webhook.yaml"),
            )
        )
    },
)
"""Only the admission webhook of Knative Serving, with which Knative Services can be created but do not run."""


def apply_manifests(cluster: LocalCluster, manifests: list[Manifest]) -> None:
    """Apply objects server-side, and take over their fields from other field managers."""
    cluster.apply(manifests, "--force-conflicts")


def split_prerequisites(manifests: list[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """Return the manifests that must be applied first, and all other manifests."""
    return [manifest for manifest in manifests if manifest["kind"] in PREREQUISITE_KINDS], [
        manifest for manifest in manifests if manifest["kind"] not in PREREQUISITE_KINDS
    ]


def pin_namespace_to_knative_node(cluster: LocalCluster, namespace: str) -> None:
    """Make the API server place all pods of a namespace on Knative's node, which is never drained."""
    cluster.kubectl("annotate", "--overwrite", "namespace", namespace, *PLACEMENT_ANNOTATIONS)


def install_project(cluster: LocalCluster, project: KnativeProject, ports: Mapping[str, int]) -> None:
    """Install a project; its webhooks complete their own webhook configurations later, when they start.

    Args:
        project: The project.
        ports: The local port that serves each webhook's Service.
    """
    cluster.kubectl("apply", "-f", HERE / "node.yaml")
    manifests = project.load_manifests()
    for kind in PREREQUISITE_KINDS:
        apply_manifests(cluster, [manifest for manifest in manifests if manifest["kind"] == kind])
    pin_namespace_to_knative_node(cluster, project.namespace)
    other_manifests = [manifest for manifest in manifests if manifest["kind"] not in PREREQUISITE_KINDS]
    for manifest in other_manifests:
        if manifest["kind"] == "Service" and manifest["metadata"]["name"] in project.webhooks:
            del manifest["spec"]["selector"]  # The Service's endpoint is not a pod.
    endpoints = [_build_endpoint_slice(project.namespace, service, ports[service]) for service in project.webhooks]
    apply_manifests(cluster, [*other_manifests, *endpoints])
    cluster.wait_for_crds()


def _build_endpoint_slice(namespace: str, service: str, port: int) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": service, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "https-webhook", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [get_host_address()], "conditions": {"ready": True}}],
    }


def get_host_address() -> str:
    """Return a non-loopback address of this host, because an EndpointSlice must not contain a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: a reserved address; choosing a route sends no packet
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        raise LocalClusterError(
            "this host has only loopback addresses, but Knative's webhooks require another: connect it to a network"
        )
    return address
