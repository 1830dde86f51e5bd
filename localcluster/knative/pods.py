"""Knative Eventing as pods on real nodes: its own YAML with other names of images, each made around a program."""

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
"""The API server calls webhooks at the addresses of their pods: it is not where kube-proxy is."""
BUILT = re.compile(r"ko://knative\.dev/eventing/cmd/(?:\w+/)*(\w+)")
"""Where a program is in its module, in the place of an image's name: `ko` builds it."""
NAME = "localhost/knative/{}:local"
NOT_ROOT = 65532
"""The user of the images that Knative publishes."""
SECONDS = 120
WEBHOOKS = ("eventing-webhook", "imc-controller")
"""Deployments that judge its objects; told to end, they answer on for a minute."""


def apply(cluster: LocalCluster) -> None:
    """Install it; its pods start when there are nodes that know its images."""
    for half in install.halves(manifests()):
        install.apply(cluster, half)
        cluster.await_kinds()


def await_ready(cluster: LocalCluster) -> None:
    """Return when its objects can be created. Its controllers are at work, too, but count as ready 20 s later."""
    limit = f"--timeout={SECONDS}s"
    cluster.kubectl("wait", "deployment", *WEBHOOKS, "-n", EVENTING.namespace, "--for=condition=Available", limit)


def manifests() -> list[Manifest]:
    """Give its objects as they are, but for the names of images."""
    text = yaml.safe_dump_all(EVENTING.manifests(frozenset()))
    return [*yaml.load_all(BUILT.sub(lambda match: NAME.format(match[1]), text), Loader=LOADER)]


def archives(folder: Path) -> list[Path]:
    """Write the images of all its programs into a folder; gives the files."""
    folder.mkdir(parents=True)
    programs = build.servers(build.KNATIVE)

    def written(name: str) -> Path:
        image = images.Image(NAME.format(name), programs / name, (f"/bin/{name}",), user=NOT_ROOT)
        return images.write(image, folder / f"{name}.tar")

    with ThreadPoolExecutor() as pool:
        return list(pool.map(written, build.KNATIVE.programs))
