"""Knative Eventing as pods on real nodes: its own manifests with local images, each of which contains one binary."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.install import EVENTING, Manifest
from localcluster.nodes import images
from localcluster.programs import build

APISERVER_FLAGS = ("--enable-aggregator-routing=true",)
"""Makes the API server call webhooks at their pods' addresses, since its host has no kube-proxy."""
KO_IMAGE = re.compile(r"ko://knative\.dev/eventing/cmd/(?:\w+/)*(\w+)")
"""Matches the import path that stands for an image in the manifests, as `ko` expects it."""
IMAGE_NAME = "localhost/knative/{}:local"
NONROOT_UID = 65532
"""The user of the images that Knative publishes."""
TIMEOUT_SECONDS = 120
WEBHOOKS = ("eventing-webhook", "imc-controller")
"""The Deployments that serve Knative's admission webhooks; each keeps serving for a minute after SIGTERM."""


def apply(cluster: LocalCluster) -> None:
    """Install Knative; its pods start once nodes that have its images exist."""
    for manifests in install.split_prerequisites(build_manifests()):
        install.apply_manifests(cluster, manifests)
        cluster.wait_for_crds()


def wait_until_ready(cluster: LocalCluster) -> None:
    """Return when Knative's objects can be created; its controllers, which become Ready 20 s later, already run."""
    limit = f"--timeout={TIMEOUT_SECONDS}s"
    cluster.kubectl("wait", "deployment", *WEBHOOKS, "-n", EVENTING.namespace, "--for=condition=Available", limit)


def build_manifests() -> list[Manifest]:
    """Return Knative's objects, with only the image names changed."""
    text = yaml.safe_dump_all(EVENTING.load_manifests(frozenset()))
    return [*yaml.load_all(KO_IMAGE.sub(lambda match: IMAGE_NAME.format(match[1]), text), Loader=YAML_LOADER)]


def write_archives(directory: Path) -> list[Path]:
    """Write an image archive for each binary into a directory; return the archives."""
    directory.mkdir(parents=True)
    programs = build.ensure_programs(build.KNATIVE)

    def write_archive(name: str) -> Path:
        image = images.Image(IMAGE_NAME.format(name), programs / name, (f"/bin/{name}",), user=NONROOT_UID)
        return images.write_image(image, directory / f"{name}.tar")

    with ThreadPoolExecutor() as pool:
        return list(pool.map(write_archive, build.KNATIVE.programs))
