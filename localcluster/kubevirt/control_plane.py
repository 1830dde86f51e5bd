"""KubeVirt's control plane on a local cluster: virt-controller and virt-api."""

from __future__ import annotations

from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.kubevirt.api import VirtApi
from localcluster.kubevirt.controller import VirtController
from localcluster.processes import Server, Startable, kill_all


class KubeVirtControlPlane(Startable):
    """virt-controller and virt-api, installed as KubeVirt's operator would install them.

    Args:
        directory: The directory for the logs.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._controller, self._api = VirtController(cluster, directory), VirtApi(cluster, directory)

    @property
    def servers(self) -> list[Server]:
        """Return both processes."""
        return [self._controller.server, self._api.server]

    def _start_and_wait(self) -> None:
        """Install KubeVirt with its default configuration and start it; return when evictions call its webhook."""
        self._controller.install_crds()
        self._controller.create_kubevirt()
        self._controller.start()
        self._api.start()

    def stop(self) -> None:
        """Kill both processes without a graceful shutdown.

        The webhook stays registered, since the cluster may have ended already.
        """
        kill_all(self.servers)
