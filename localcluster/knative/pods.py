"""Knative as pods on real nodes: its own manifests with local images, each of which contains one binary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.install import KnativeProject, Manifest
from localcluster.knative.program_pods import NONROOT_UID, TIMEOUT_SECONDS
from localcluster.nodes import images
from localcluster.programs import build

APISERVER_FLAGS = ("--enable-aggregator-routing=true",)
"""Makes the API server call webhooks at their pods' addresses, since its host has no kube-proxy."""
KO_IMAGE = re.compile(r"ko://knative\.dev/(\w+)/cmd/(?:\w+/)*(\w+)")
"""Matches the import path that stands for an image in the manifests, as `ko` expects it."""
IMAGE_NAME = "localhost/knative/{}-{}:local"


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
            name = IMAGE_NAME.format(self.project.name, program)
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
        text = KO_IMAGE.sub(lambda match: IMAGE_NAME.format(match[1], match[2]), text)
        manifests = [*yaml.load_all(text, Loader=YAML_LOADER)]
        for manifest in manifests:
            if manifest["kind"] == "ConfigMap":
                manifest.setdefault("data", {}).update(self.settings.get(manifest["metadata"]["name"], {}))
        return manifests


EVENTING = KnativePods(install.EVENTING, tuple(install.EVENTING.webhooks.values()))
"""Knative Eventing; its controllers become Ready 20 s after its webhooks."""
