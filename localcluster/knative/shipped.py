"""The product as a user has it: an overlay of a few lines over one of ours, as pods on real nodes with Knative's."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.knative import pods
from localcluster.knative.product import KINDS, PLAIN
from localcluster.nodes import product_image
from localcluster.nodes.nodes import RealNodes
from localcluster.servers import ROOT
from localcluster.wings.overlay import relative

COMPONENTS = ROOT / "manifests" / "components"
SECONDS = 180
"""A certificate that was made after its pod reaches that pod when its kubelet looks again, within some 90 s."""


class Part(Protocol):
    """What is installed as pods beside the product: a module of ours."""

    def archives(self, folder: Path) -> list[Path]:
        """Write its images into a folder."""

    def apply(self, cluster: LocalCluster) -> None:
        """Install it."""

    def await_ready(self, cluster: LocalCluster) -> None:
        """Return when it serves."""


@contextmanager
def nodes(directory: Path, count: int = 2, parts: Sequence[Part] = (pods,)) -> Iterator[tuple[LocalCluster, RealNodes]]:
    """Give a cluster with so many real nodes, Ready, and Knative as pods on them; on leaving, all of it ends.

    In: a folder that is not there yet, and what else is installed, Knative being the first.
    """
    written = [each.archives(directory / "images" / str(number)) for number, each in enumerate(parts)]
    archives = [product_image.archive(), *itertools.chain(*written)]
    with (
        LocalCluster(directory / "servers", nodes=1, flags=pods.FLAGS, real=count) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        applied = [pool.submit(each.apply, cluster) for each in parts]  # while the nodes take in the images
        with RealNodes(cluster, count, archives) as real:
            shutil.rmtree(directory / "images")
            for each in applied:
                each.result()
            real.await_ready()
            for part in parts:
                part.await_ready(cluster)
            yield cluster, real


def overlay(
    folder: Path,
    components: Sequence[str] = (),
    over: Path = PLAIN,
    image: str = product_image.IMAGE,
    files: Sequence[Path] = (),
    patches: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write what a user writes: an overlay of ours, the image's name, components, files, patches; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    name, _, tag = image.rpartition(":")
    written = {
        "resources": [relative(folder, over), *(Path(shutil.copy(file, folder)).name for file in files)],
        "images": [{"name": "nodemaintenance", "newName": name, "newTag": tag}],
        **({"components": [relative(folder, COMPONENTS / each) for each in components]} if components else {}),
        **({"patches": [*patches]} if patches else {}),
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return folder


def await_ready(cluster: LocalCluster, *but: str) -> None:
    """Return when all our Knative objects are Ready, and all our pods, some of which come from these.

    In: the names of Deployments that are not waited for.
    """
    limit = f"--timeout={SECONDS}s"
    cluster.kubectl("wait", KINDS, "--all", "-n", NAMESPACE, "--for=condition=Ready", limit)
    names = cluster.kubectl("get", "deployment", "-n", NAMESPACE, "-o", "name").stdout.split()
    for name in names:
        if name.rpartition("/")[2] not in but:
            cluster.kubectl("rollout", "status", "-n", NAMESPACE, name, limit)
