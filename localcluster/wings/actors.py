"""Who plays the projects that opt-in wings stand on, each part a process: OpenShift's two operators, and KubeVirt.

Or KubeVirt itself runs, and no more than its part on each node is played.
"""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.kubevirt.whole import KubeVirt
from localcluster.processes import Server, Startable, await_ready, kill_all
from localcluster.servers import DIRECT, ROOT
from localcluster.wings.choice import BESIDE, MUTEX, ON, VIRTUALIZATION, Wings

MODULE = "tests.actors"
"""They are fixtures of the tests, and no part of the product."""
PARTS = {MUTEX: ("fake-cvo", "fake-mco"), VIRTUALIZATION: ("fake-virt",)}
"""Wing → what is played for it."""
ON_NODES = ("fake-virt-handler",)
"""What is played beside KubeVirt."""
POOL = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker"
UNTOLD = (
    "!machineconfiguration.openshift.io/release-image-version,!node-role.kubernetes.io/control-plane,!localcluster/for"
)
"""Selects the workers that carry no version yet; the node of Knative's own pods is none."""
SECONDS = 30


class Actors(Startable):
    """Those of the wings, on a cluster with their foreign kinds.

    In: that, a folder for their logs, the wings, and which of `choice.ACTORS`.
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
        """Start them; return when OpenShift's pools and ClusterVersion are there, and every worker's version.

        KubeVirt itself is ready then, too.
        """
        for server in self._played:
            server.start()
        if self._kubevirt:
            self._kubevirt.start()
        if MUTEX in self._wings:
            await_ready("OpenShift's actors", self._are_ready, self._played, SECONDS)

    @property
    def servers(self) -> list[Server]:
        """Give every process of them."""
        return [*self._played, *(self._kubevirt.servers if self._kubevirt else [])]

    def stop(self) -> None:
        """End them; what they did stays."""
        kill_all(self.servers)

    def _are_ready(self) -> bool:
        workers = self._cluster.door().list("/api/v1/nodes", labels=UNTOLD)["items"]
        return not workers and self._cluster.serves(POOL)
