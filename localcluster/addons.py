"""Add-ons that run as pods on real nodes: Knative Eventing and Serving, Traefik, and an image registry.

Each image contains one binary and is built by this module, because no node can pull an image from the internet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.install import KnativeProject, Manifest
from localcluster.nodes import images, product_image
from localcluster.nodes.node import RealNode
from localcluster.nodes.node_config import REGISTRY_HOST
from localcluster.programs import build

APISERVER_FLAGS = ("--enable-aggregator-routing=true",)
"""Makes the API server call webhooks at their pods' addresses, since its host has no kube-proxy."""
KO_IMAGE = re.compile(r"ko://knative\.dev/(\w+)/cmd/(?:\w+/)*(\w+)")
"""Matches a `ko://` reference to an image in Knative's manifests, which the tool `ko` would replace."""
KNATIVE_IMAGE_NAME, PROGRAM_IMAGE_NAME = "localhost/knative/{}-{}:local", "localhost/{}:local"
NONROOT_UID = 65532
"""The UID with which Knative's published images run."""
TIMEOUT_SECONDS = 300
SERVING_SETTINGS = {
    "config-network": {"ingress-class": "traefik.ingress.networking.knative.dev"},
    # Knative treats an image name without a registry, such as localhost/nodemaintenance, as one of index.docker.io.
    "config-deployment": {"registries-skipping-tag-resolving": "kind.local,ko.local,dev.local,index.docker.io"},
}
"""Settings in Knative Serving's ConfigMaps: the networking layer, and no tag resolution for the nodes' local images."""


class Addon(Protocol):
    """An add-on that is installed as pods next to the product."""

    def write_archives(self, directory: Path) -> list[Path]:
        """Write the add-on's images as archives to a directory, and return the archives' paths."""

    def apply(self, cluster: LocalCluster) -> None:
        """Install the add-on, without waiting until it is ready."""

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when the add-on is ready."""


@dataclass(frozen=True)
class ProgramPods:
    """An add-on that runs one program as a Deployment or a DaemonSet.

    Attributes:
        name: The program's name, which is also the name of its image, workload and namespace.
        toolset: The toolset that contains the program.
        manifest: The manifest file, in which the pods use the image `PROGRAM_IMAGE_NAME`.
        workload: The workload's resource name, `deployment` or `daemonset`.
    """

    name: str
    toolset: build.Toolset
    manifest: Path
    workload: str = "deployment"

    def write_archives(self, directory: Path) -> list[Path]:
        """Write the program's image archive to a directory, and return its path."""
        directory.mkdir(parents=True)
        program = build.ensure_programs(self.toolset) / self.name
        image = images.Image(PROGRAM_IMAGE_NAME.format(self.name), program, (f"/bin/{self.name}",), user=NONROOT_UID)
        return [images.write_image(image, directory / f"{self.name}.tar")]

    def apply(self, cluster: LocalCluster) -> None:
        """Apply the manifest; the pods start once a node has the image."""
        cluster.kubectl("apply", "--server-side", "-f", self.manifest)

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when the workload's pods are available."""
        limit = f"--timeout={TIMEOUT_SECONDS}s"
        cluster.kubectl("rollout", "status", self.workload, self.name, "-n", self.name, limit)


@dataclass(frozen=True)
class KnativePods:
    """An add-on that installs one of Knative's projects as pods.

    Attributes:
        project: The Knative project.
        awaited_deployments: The Deployments that must be available before objects of the project can be created.
        settings: Settings in the project's ConfigMaps, by ConfigMap name.
    """

    project: KnativeProject
    awaited_deployments: tuple[str, ...]
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def write_archives(self, directory: Path) -> list[Path]:
        """Write an image archive for each binary to a directory, and return the archives' paths."""
        directory.mkdir(parents=True)
        programs = build.ensure_programs(self.project.toolset)

        def write_archive(program: str) -> Path:
            name = KNATIVE_IMAGE_NAME.format(self.project.name, program)
            image = images.Image(name, programs / program, (f"/bin/{program}",), user=NONROOT_UID)
            return images.write_image(image, directory / f"{program}.tar")

        with ThreadPoolExecutor() as pool:
            return list(pool.map(write_archive, self.project.toolset.programs))

    def apply(self, cluster: LocalCluster) -> None:
        """Install the project; its pods start once a node has its images."""
        for manifests in install.split_prerequisites(self.build_manifests()):
            install.apply_manifests(cluster, manifests)
            cluster.wait_for_crds()

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when objects of the project can be created."""
        namespace, limit = self.project.namespace, f"--timeout={TIMEOUT_SECONDS}s"
        cluster.kubectl(
            "wait", "deployment", *self.awaited_deployments, "-n", namespace, "--for=condition=Available", limit
        )

    def build_manifests(self) -> list[Manifest]:
        """Return the project's manifests with local image names and with `settings` in their ConfigMaps."""
        text = yaml.safe_dump_all(self.project.load_manifests(frozenset()))
        text = KO_IMAGE.sub(lambda match: KNATIVE_IMAGE_NAME.format(match[1], match[2]), text)
        manifests = [*yaml.load_all(text, Loader=YAML_LOADER)]
        for manifest in manifests:
            if manifest["kind"] == "ConfigMap":
                manifest.setdefault("data", {}).update(self.settings.get(manifest["metadata"]["name"], {}))
        return manifests


EVENTING_ADDON = KnativePods(install.EVENTING, tuple(install.EVENTING.webhooks.values()))
"""Knative Eventing; its controllers become Ready 20 s after its webhooks."""
SERVING = KnativePods(install.SERVING, ("activator", "autoscaler", "controller", "webhook"), SERVING_SETTINGS)
TRAEFIK = ProgramPods("traefik", build.TRAEFIK, build.MODULES_DIR / "serving" / "traefik.yaml")
"""The ingress that routes requests to Knative Services; it replaces the usual Envoy-based ingresses."""
SERVING_ADDONS = (SERVING, TRAEFIK)
"""The add-ons that run Knative Services, in the order of their installation."""
REGISTRY = ProgramPods("registry", build.REGISTRY, build.MODULES_DIR / "registry" / "registry.yaml", "daemonset")
"""An OCI registry on each node. It requires a password, and the node pulls images from it over HTTP."""
REGISTRY_USER, REGISTRY_PASSWORD = "test", "test"
PUSHED_IMAGE_NAME = f"{REGISTRY_HOST}/nodemaintenance"
PULL_SECRET_PATCH: dict[str, Any] = {
    "target": {"kind": "ServiceAccount"},
    "patch": f"- {{op: add, path: /imagePullSecrets, value: [{{name: {REGISTRY.name}}}]}}",
}
"""The Kustomize patch of docs/install.md for a private registry."""


def push_product_image(nodes: Iterable[RealNode], version: str = product_image.VERSION) -> str:
    """Push the product's image from each node to the registry on that node; return the image's new name and tag."""
    name = f"{PUSHED_IMAGE_NAME}:v{version}"
    for node in nodes:
        node.push_image(product_image.IMAGE, name, f"{REGISTRY_USER}:{REGISTRY_PASSWORD}")
    return name


def create_pull_secret(cluster: LocalCluster, namespace: str) -> None:
    """Create the registry's image pull Secret, to which `PULL_SECRET_PATCH` refers."""
    login = (f"--docker-username={REGISTRY_USER}", f"--docker-password={REGISTRY_PASSWORD}")
    cluster.kubectl(
        "create",
        "secret",
        "docker-registry",
        REGISTRY.name,
        "-n",
        namespace,
        f"--docker-server={REGISTRY_HOST}",
        *login,
    )
