"""Fakes of the projects that the opt-in components need, one process each: OpenShift's two operators, and KubeVirt.

Alternatively KubeVirt's own control plane runs, and only its part on each node is faked.
"""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.kubevirt.control_plane import KubeVirt
from localcluster.processes import Server, Startable, await_ready, kill_all
from localcluster.servers import DIRECT, ROOT
from localcluster.components.selection import BESIDE, MUTEX, ON, VIRTUALIZATION, Wings

MODULE = "tests.fakes"
"""The fakes are test fixtures, not part of the product."""
PARTS = {MUTEX: ("fake-cvo", "fake-mco"), VIRTUALIZATION: ("fake-virt",)}
"""For each component, the fakes that it needs."""
ON_NODES = ("fake-virt-handler",)
"""The fakes that run next to KubeVirt's own control plane."""
POOL = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker"
UNTOLD = (
    "!machineconfiguration.openshift.io/release-image-version,!node-role.kubernetes.io/control-plane,!localcluster/for"
)
"""Selects the workers without a version label, except for the node of Knative's own pods."""
SECONDS = 30


class Actors(Startable):
    """The fakes for these components, on a cluster that has the CRDs of the projects they imitate.

    Args:
        directory: The directory for the logs.
        wings: The installed components.
        actors: One of `choice.ACTORS`.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, wings: Wings, actors: str = ON) -> None:
        self._cluster, self._wings = cluster, wings
        self._kubevirt = KubeVirt(cluster, directory) if actors == BESIDE else None
        parts = {**PARTS, VIRTUALIZATION: ON_NODES} if actors == BESIDE else PARTS
        who = {**DIRECT, "KUBECONFIG": str(cluster.kubeconfig)}
        self._played = [
            Server(name, [sys.executable, "-m", MODULE, name], directory / f"{name}.log", who, ROOT)
            for wing, names in parts.items()
            for name in names
            if wing in wings
        ]

    def _bring_up(self) -> None:
        """Start the fakes; return when OpenShift's pools and each worker's version exist.

        KubeVirt's own control plane is ready then, too, if it runs.
        """
        for server in self._played:
            server.start()
        if self._kubevirt:
            self._kubevirt.start()
        if MUTEX in self._wings:
            await_ready("OpenShift's actors", self._are_ready, self._played, SECONDS)

    @property
    def servers(self) -> list[Server]:
        """Return all processes."""
        return [*self._played, *(self._kubevirt.servers if self._kubevirt else [])]

    def stop(self) -> None:
        """Kill the processes; the objects that they created stay."""
        kill_all(self.servers)

    def _are_ready(self) -> bool:
        workers = self._cluster.door().list("/api/v1/nodes", labels=UNTOLD)["items"]
        return not workers and self._cluster.serves(POOL)
