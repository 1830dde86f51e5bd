"""Installs the product as a user would: as pods on real nodes with Knative, by a short overlay over a shipped one."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from localcluster.access import NAMESPACE
from localcluster.addons import APISERVER_FLAGS, EVENTING_ADDON, Addon
from localcluster.cluster import LocalCluster
from localcluster.components.overlay import ensure_overlay, make_relative
from localcluster.components.selection import Components
from localcluster.knative.product import EVENTING_KINDS, PLAIN_OVERLAY
from localcluster.nodes import product_image
from localcluster.nodes.real_nodes import RealNodes
from localcluster.processes import Server, Startable
from localcluster.servers import ROOT

COMPONENTS_DIR = ROOT / "manifests" / "components"
LATE_DEPLOYMENT = "validate"
"""The Deployment that is ready last, because its certificate reaches its pod only at the kubelet's next sync."""
SERVICE_KIND, SERVICES_PATH = "services.serving.knative.dev", "/apis/serving.knative.dev/v1/services"
INGRESS_URL = "http://broker-ingress.knative-eventing.svc.cluster.local"
TIMEOUT_SECONDS = 420
"""Timeout of each wait. A kubelet mounts a certificate that is issued after the pod's start within about 90 s.

On a slow machine on which two clusters start, Knative's pods need up to four minutes to be ready.
"""


@contextmanager
def start_real_cluster(
    directory: Path, count: int = 2, addons: Sequence[Addon] = (EVENTING_ADDON,)
) -> Iterator[tuple[LocalCluster, RealNodes]]:
    """Yield a cluster with `count` Ready real nodes and with Knative as pods on them; stop the cluster afterwards.

    Args:
        directory: A directory that does not exist yet.
        count: The number of real nodes.
        addons: The add-ons to install, in installation order; Knative must be the first one.
    """
    with (
        LocalCluster(directory / "servers", nodes=1, flags=APISERVER_FLAGS, real_nodes=count) as cluster,
        start_real_nodes(cluster, count, directory / "images", addons) as real_nodes,
    ):
        yield cluster, real_nodes


@contextmanager
def start_real_nodes(
    cluster: LocalCluster, count: int, directory: Path, addons: Sequence[Addon]
) -> Iterator[RealNodes]:
    """Yield `count` Ready real nodes that have the product's image, with the add-ons as pods on the nodes.

    Args:
        cluster: A cluster that was started with `APISERVER_FLAGS`.
        count: The number of real nodes.
        directory: A directory for images, which does not exist yet.
        addons: The add-ons to install, in installation order; Knative must be the first one.
    """
    addon_archives = [addon.write_archives(directory / str(number)) for number, addon in enumerate(addons)]
    archives = [product_image.ensure_archive(), *itertools.chain(*addon_archives)]
    with ThreadPoolExecutor(1) as pool:
        # The add-ons are applied while the nodes import the images, which takes longer.
        installations = [pool.submit(addon.apply, cluster) for addon in addons]
        with RealNodes(cluster, count, archives) as real_nodes:
            shutil.rmtree(directory)
            for installation in installations:
                installation.result()
            real_nodes.wait_until_ready()
            for addon in addons:
                addon.wait_until_ready(cluster)
            yield real_nodes


def write_overlay(
    directory: Path,
    components: Sequence[str] = (),
    base: Path = PLAIN_OVERLAY,
    image: str = product_image.IMAGE,
    files: Sequence[Path] = (),
    patches: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write the overlay that a user would write; return its directory.

    Args:
        directory: The directory to write to.
        components: The names of the kustomize components to add.
        base: The directory of the shipped overlay.
        image: The image's name and tag.
        files: Manifests to add to the overlay's resources.
        patches: Kustomize patches to add.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name, _, tag = image.rpartition(":")
    kustomization = {
        "resources": [make_relative(directory, base), *(Path(shutil.copy(file, directory)).name for file in files)],
        "images": [{"name": "nodemaintenance", "newName": name, "newTag": tag}],
        **(
            {"components": [make_relative(directory, COMPONENTS_DIR / component) for component in components]}
            if components
            else {}
        ),
        **({"patches": [*patches]} if patches else {}),
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return directory


def wait_until_ready(cluster: LocalCluster, *excluded: str, namespace: str = NAMESPACE) -> None:
    """Wait until the product's Knative objects are Ready, then wait for its Deployments except those in `excluded`."""
    limit = f"--timeout={TIMEOUT_SECONDS}s"
    cluster.kubectl(
        "wait", format_kinds_with_ready_condition(cluster), "--all", "-n", namespace, "--for=condition=Ready", limit
    )
    names = cluster.kubectl("get", "deployment", "-n", namespace, "-o", "name").stdout.split()
    for name in names:
        if name.rpartition("/")[2] not in excluded:
            cluster.kubectl("rollout", "status", "-n", namespace, name, limit)


def format_kinds_with_ready_condition(cluster: LocalCluster) -> str:
    """Return a comma-separated list of Knative's kinds with a condition Ready; without Serving, only Eventing's."""
    return f"{SERVICE_KIND},{EVENTING_KINDS}" if cluster.is_served(SERVICES_PATH) else EVENTING_KINDS


class PodProduct(Startable):
    """The product as pods on a cluster whose real nodes run Knative, without any local process.

    Args:
        cluster: A cluster with real nodes that have the product's image, and with Knative as pods.
        directory: The directory for the overlay.
        components: The components to install.
        shipped_overlay: The directory of the shipped overlay.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, components: Components, shipped_overlay: Path) -> None:
        self._cluster = cluster
        base = ensure_overlay(shipped_overlay, components, directory / "components")
        self._overlay = write_overlay(directory / "overlay", base=base)
        self.broker_url = f"{INGRESS_URL}/{NAMESPACE}/default"
        self.functions_url = ""
        self.journal = directory / "journal.db"  # This file does not exist: the journal is in the pod of `record`.
        self.servers: Sequence[Server] = ()

    def get_function_url(self, name: str) -> str:
        """Return a function's URL, which only pods can reach."""
        return f"http://{name}.{NAMESPACE}.svc.cluster.local"

    def _start_and_wait(self) -> None:
        """Apply the overlay; return when its Services, Triggers and Deployments are ready, except the webhook's one."""
        self._cluster.kubectl("apply", "-k", self._overlay)
        wait_until_ready(self._cluster, LATE_DEPLOYMENT)

    def stop(self) -> None:
        """Do nothing, because the pods stop with their nodes."""
