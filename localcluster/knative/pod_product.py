"""The product as pods on real nodes, as a user installs it: with a short overlay over a shipped one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.components import overlay
from localcluster.components.selection import Components
from localcluster.knative import pod_install
from localcluster.processes import Server, Startable

INGRESS_URL = "http://broker-ingress.knative-eventing.svc.cluster.local"


class PodProduct(Startable):
    """The product on a cluster whose real nodes run Knative; it has no processes of its own on this host.

    Args:
        cluster: A cluster with real nodes that have the product's image, and with Knative as pods.
        directory: The directory for the overlay.
        components: The components to install.
        shipped_overlay: The shipped overlay.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, components: Components, shipped_overlay: Path) -> None:
        self._cluster = cluster
        base = overlay.ensure_overlay(shipped_overlay, components, directory / "components")
        self._overlay = pod_install.write_overlay(directory / "overlay", base=base)
        self.broker_url = f"{INGRESS_URL}/{NAMESPACE}/default"
        self.functions_url = ""
        self.journal = directory / "journal.db"  # This file does not exist: the journal is in the pod of `record`.
        self.servers: Sequence[Server] = ()

    def get_function_url(self, name: str) -> str:
        """Return the address of one function, which only pods can reach."""
        return f"http://{name}.{NAMESPACE}.svc.cluster.local"

    def _start_and_wait(self) -> None:
        """Apply the overlay; return when its Services, Triggers and Deployments are ready, except the webhook."""
        self._cluster.kubectl("apply", "-k", self._overlay)
        pod_install.wait_until_ready(self._cluster, pod_install.LATE_DEPLOYMENT)

    def stop(self) -> None:
        """Do nothing, because the pods end with their nodes."""
