"""Who plays OpenShift beside the product: *fake-cvo* and *fake-mco*, each a process."""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.processes import Server, Startable, await_ready, kill_all
from localcluster.servers import DIRECT, ROOT

MODULE = "tests.actors"
"""They are fixtures of the tests, and no part of the product."""
NAMES = ("fake-cvo", "fake-mco")
POOL = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker"
UNTOLD = (
    "!machineconfiguration.openshift.io/release-image-version,!node-role.kubernetes.io/control-plane,!localcluster/for"
)
"""Selects the workers that carry no version yet; the node of Knative's own pods is none."""
SECONDS = 30


class Actors(Startable):
    """Both, on a cluster with OpenShift's kinds; in: that, and a folder for their logs."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        who = {**DIRECT, "KUBECONFIG": str(cluster.kubeconfig)}
        self.servers = [
            Server(name, [sys.executable, "-m", MODULE, name], directory / f"{name}.log", who, ROOT) for name in NAMES
        ]

    def _bring_up(self) -> None:
        """Start them; return when pools and ClusterVersion are there, and every worker's version."""
        for server in self.servers:
            server.start()
        await_ready("OpenShift's actors", self._are_ready, self.servers, SECONDS)

    def stop(self) -> None:
        """End them; what they did stays."""
        kill_all(self.servers)

    def _are_ready(self) -> bool:
        workers = self._cluster.door().list("/api/v1/nodes", labels=UNTOLD)["items"]
        return not workers and self._cluster.serves(POOL)
