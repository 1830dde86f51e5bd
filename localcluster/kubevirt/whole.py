"""KubeVirt on a cluster of `make up`: what of it runs anywhere, its virt-controller and its virt-api."""

from __future__ import annotations

from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.kubevirt.api import VirtApi
from localcluster.kubevirt.controller import VirtController
from localcluster.processes import Server, Startable, kill_all


class KubeVirt(Startable):
    """Both of them, installed as by KubeVirt's operator; in: a cluster, and a folder for their logs."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._controller, self._api = VirtController(cluster, directory), VirtApi(cluster, directory)

    @property
    def servers(self) -> list[Server]:
        """Give their processes."""
        return [self._controller.server, self._api.server]

    def _bring_up(self) -> None:
        """Install KubeVirt, configured as by default, and start it; return when evictions are asked about."""
        self._controller.install()
        self._controller.declare()
        self._controller.start()
        self._api.start()

    def stop(self) -> None:
        """End them, as a crash would; the cluster, which may be gone already, is not told."""
        kill_all(self.servers)
