"""The product as a user installs it: a short overlay on top of a shipped one, as pods on real nodes with Knative."""

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
from localcluster.nodes.real_nodes import RealNodes
from localcluster.servers import ROOT
from localcluster.components.overlay import relative

COMPONENTS = ROOT / "manifests" / "components"
SECONDS = 180
"""A kubelet mounts a certificate that was issued after its pod started only at its next sync, within some 90 s."""


class Part(Protocol):
    """An add-on that is installed as pods next to the product; the implementations are modules."""

    def archives(self, folder: Path) -> list[Path]:
        """Write the add-on's images into a directory."""

    def apply(self, cluster: LocalCluster) -> None:
        """Install the add-on."""

    def await_ready(self, cluster: LocalCluster) -> None:
        """Return when the add-on serves."""


@contextmanager
def nodes(directory: Path, count: int = 2, parts: Sequence[Part] = (pods,)) -> Iterator[tuple[LocalCluster, RealNodes]]:
    """Yield a cluster with `count` real nodes that are Ready, and with Knative as pods on them; stop it afterwards.

    Args:
        directory: A directory that does not exist yet.
        count: The number of real nodes.
        parts: The add-ons to install, Knative first.
    """
    written = [each.archives(directory / "images" / str(number)) for number, each in enumerate(parts)]
    archives = [product_image.archive(), *itertools.chain(*written)]
    with (
        LocalCluster(directory / "servers", nodes=1, flags=pods.FLAGS, real=count) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        applied = [pool.submit(each.apply, cluster) for each in parts]  # runs while the nodes import the images
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
    """Write the overlay that a user would write; return its directory.

    Args:
        folder: The directory to write to.
        components: The components to add.
        over: The shipped overlay.
        image: The image with its tag.
        files: Further manifests.
        patches: Kustomize patches.
    """
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
    """Return when all Knative objects of the product are Ready, and then all its Deployments except those in `but`."""
    limit = f"--timeout={SECONDS}s"
    cluster.kubectl("wait", KINDS, "--all", "-n", NAMESPACE, "--for=condition=Ready", limit)
    names = cluster.kubectl("get", "deployment", "-n", NAMESPACE, "-o", "name").stdout.split()
    for name in names:
        if name.rpartition("/")[2] not in but:
            cluster.kubectl("rollout", "status", "-n", NAMESPACE, name, limit)
