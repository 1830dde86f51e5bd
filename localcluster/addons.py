"""Add-ons that run as pods on real nodes: Knative Eventing and Serving, Traefik, and an image registry.

Each image is built here and contains one binary, because no node can pull an image from the internet.
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
"""Matches the import path that stands for an image in the manifests, as `ko` expects it."""
KNATIVE_IMAGE_NAME, PROGRAM_IMAGE_NAME = "localhost/knative/{}-{}:local", "localhost/{}:local"
NONROOT_UID = 65532
"""The user of the images that Knative publishes."""
TIMEOUT_SECONDS = 300
SERVING_SETTINGS = {
    "config-network": {"ingress-class": "traefik.ingress.networking.knative.dev"},
    # An image name without a registry, such as localhost/nodemaintenance, counts as one of index.docker.io.
    "config-deployment": {"registries-skipping-tag-resolving": "kind.local,ko.local,dev.local,index.docker.io"},
}
"""Selects the networking layer, and excludes the nodes' local images from the resolution of tags to digests."""


class Addon(Protocol):
    """An add-on that is installed as pods next to the product."""

    def write_archives(self, directory: Path) -> list[Path]:
        """Write the add-on's images into a directory."""

    def apply(self, cluster: LocalCluster) -> None:
        """Install the add-on."""

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when the add-on is ready."""


@dataclass(frozen=True)
class ProgramPods:
    """Add-on for one program.

    Attributes:
        name: The name of the program, of its image, of its workload and of its namespace.
        toolset: The toolset that contains the program.
        manifest: The file of its objects, which uses the image `PROGRAM_IMAGE_NAME`.
        workload: The resource of its workload, `deployment` or `daemonset`.
    """

    name: str
    toolset: build.Toolset
    manifest: Path
    workload: str = "deployment"

    def write_archives(self, directory: Path) -> list[Path]:
        """Write the program's image archive into a directory; return it."""
        directory.mkdir(parents=True)
        program = build.ensure_programs(self.toolset) / self.name
        image = images.Image(PROGRAM_IMAGE_NAME.format(self.name), program, (f"/bin/{self.name}",), user=NONROOT_UID)
        return [images.write_image(image, directory / f"{self.name}.tar")]

    def apply(self, cluster: LocalCluster) -> None:
        """Apply the manifest; the pods start once a node that has the image exists."""
        cluster.kubectl("apply", "--server-side", "-f", self.manifest)

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when the workload's pods are available."""
        limit = f"--timeout={TIMEOUT_SECONDS}s"
        cluster.kubectl("rollout", "status", self.workload, self.name, "-n", self.name, limit)


@dataclass(frozen=True)
class KnativePods:
    """Add-on that installs one of Knative's projects as pods.

    Attributes:
        project: The project.
        awaited: The Deployments that must be available before objects of the project can be created.
        settings: Settings in the project's ConfigMaps, by ConfigMap name.
    """

    project: KnativeProject
    awaited: tuple[str, ...]
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def write_archives(self, directory: Path) -> list[Path]:
        """Write an image archive for each binary into a directory; return the archives."""
        directory.mkdir(parents=True)
        programs = build.ensure_programs(self.project.toolset)

        def write_archive(program: str) -> Path:
            name = KNATIVE_IMAGE_NAME.format(self.project.name, program)
            image = images.Image(name, programs / program, (f"/bin/{program}",), user=NONROOT_UID)
            return images.write_image(image, directory / f"{program}.tar")

        with ThreadPoolExecutor() as pool:
            return list(pool.map(write_archive, self.project.toolset.programs))

    def apply(self, cluster: LocalCluster) -> None:
        """Install the project; its pods start once nodes that have its images exist."""
        for manifests in install.split_prerequisites(self.build_manifests()):
            install.apply_manifests(cluster, manifests)
            cluster.wait_for_crds()

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when objects of the project can be created."""
        limit = f"--timeout={TIMEOUT_SECONDS}s"
        namespace = self.project.namespace
        cluster.kubectl("wait", "deployment", *self.awaited, "-n", namespace, "--for=condition=Available", limit)

    def build_manifests(self) -> list[Manifest]:
        """Return the project's objects, with only the image names and `settings` changed."""
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
"""Routes the requests to Knative Services, without Envoy."""
SERVING_ADDONS = (SERVING, TRAEFIK)
"""The add-ons that run Knative Services, in the order of their installation."""
REGISTRY = ProgramPods("registry", build.REGISTRY, build.MODULES_DIR / "registry" / "registry.yaml", "daemonset")
"""An OCI registry on each node, which requires a password, and from which the node pulls over HTTP."""
REGISTRY_USER, REGISTRY_PASSWORD = "test", "test"
PUSHED_IMAGE_NAME = f"{REGISTRY_HOST}/nodemaintenance"
PULL_SECRET_PATCH: dict[str, Any] = {
    "target": {"kind": "ServiceAccount"},
    "patch": f"- {{op: add, path: /imagePullSecrets, value: [{{name: {REGISTRY.name}}}]}}",
}
"""The Kustomize patch of docs/install.md for a private registry."""


def push_product_image(nodes: Iterable[RealNode], version: str = product_image.VERSION) -> str:
    """Push the product's image, which the nodes have, to each node's registry; return its name with the tag."""
    name = f"{PUSHED_IMAGE_NAME}:v{version}"
    for node in nodes:
        node.push_image(product_image.IMAGE, name, f"{REGISTRY_USER}:{REGISTRY_PASSWORD}")
    return name


def create_pull_secret(cluster: LocalCluster, namespace: str) -> None:
    """Create the Secret that `PULL_SECRET_PATCH` names."""
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
