"""Knative Eventing as pods on real nodes: its own manifests with local images, each built from one program."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from eventing.local.manifests import LOADER
from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.install import EVENTING, Manifest
from localcluster.nodes import images
from localcluster.programs import build

FLAGS = ("--enable-aggregator-routing=true",)
"""Makes the API server call webhooks at their pods' addresses, since kube-proxy does not run on its host."""
BUILT = re.compile(r"ko://knative\.dev/eventing/cmd/(?:\w+/)*(\w+)")
"""Matches the import path that stands for an image in the manifests, as `ko` expects it."""
NAME = "localhost/knative/{}:local"
NOT_ROOT = 65532
"""The user of the images that Knative publishes."""
SECONDS = 120
WEBHOOKS = ("eventing-webhook", "imc-controller")
"""The Deployments that serve Knative's admission webhooks; each keeps serving for a minute after SIGTERM."""


def apply(cluster: LocalCluster) -> None:
    """Install Knative; its pods start once nodes that have its images exist."""
    for half in install.halves(manifests()):
        install.apply(cluster, half)
        cluster.await_kinds()


def await_ready(cluster: LocalCluster) -> None:
    """Return when Knative's objects can be created; its controllers, which become Ready 20 s later, already run."""
    limit = f"--timeout={SECONDS}s"
    cluster.kubectl("wait", "deployment", *WEBHOOKS, "-n", EVENTING.namespace, "--for=condition=Available", limit)


def manifests() -> list[Manifest]:
    """Return Knative's objects, with only the image names changed."""
    text = yaml.safe_dump_all(EVENTING.manifests(frozenset()))
    return [*yaml.load_all(BUILT.sub(lambda match: NAME.format(match[1]), text), Loader=LOADER)]


def archives(folder: Path) -> list[Path]:
    """Write the images of all programs into a directory; return the archives."""
    folder.mkdir(parents=True)
    programs = build.servers(build.KNATIVE)

    def written(name: str) -> Path:
        image = images.Image(NAME.format(name), programs / name, (f"/bin/{name}",), user=NOT_ROOT)
        return images.write(image, folder / f"{name}.tar")

    with ThreadPoolExecutor() as pool:
        return list(pool.map(written, build.KNATIVE.programs))
