"""KubeVirt's virt-controller on a local cluster: it makes instances, launchers, migrations and budgets, as everywhere.

Of KubeVirt nothing else runs: what its virt-handler does on each node has to be played, and the steps that its
operator takes before are done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kube.door.api import JSON_PATCH, absent_ok
from localcluster.cluster import LocalCluster
from localcluster.kubevirt import crds
from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.programs import build
from localcluster.readiness import answers
from localcluster.servers import DIRECT, LOOPBACK, ROOT

NAMESPACE = NAME = "kubevirt"
PATH = f"/apis/{crds.GROUP}/{crds.STORED}/namespaces/{NAMESPACE}/kubevirts"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/virt-controller"
IMAGE = "fake"
"""No node here has any image."""
SECONDS = 60


class VirtController(Startable):
    """In: a cluster and a folder for the log. It is started once KubeVirt is installed, and may be started again."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        program = build.servers(build.KUBEVIRT) / "virt-controller"
        port = free_port()
        self._url = f"https://{LOOPBACK}:{port}/healthz"
        pki = cluster.directory / "pki"  # any certificate for this address does
        self._certificate = pki / "apiserver.crt"
        flags = {
            "kubeconfig": cluster.kubeconfig,
            "launcher-image": IMAGE,
            "exporter-image": IMAGE,
            "listen": LOOPBACK,
            "port": port,
            "prom-cert-file": self._certificate,
            "prom-key-file": pki / "apiserver.key",
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        directory.mkdir(parents=True, exist_ok=True)
        self.server = Server("virt-controller", [program, *words], directory / "virt-controller.log", DIRECT, ROOT)

    def install(self) -> None:
        """Apply all kinds and the namespace."""
        crds.install(self._cluster, (*crds.KINDS, *crds.WATCHED))
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self._cluster.door().create("/api/v1/namespaces", body)

    def declare(self, configuration: Mapping[str, Any] | None = None) -> None:
        """Have the KubeVirt object say that it is deployed, with this configuration."""
        body = {
            "apiVersion": f"{crds.GROUP}/{crds.STORED}",
            "kind": "KubeVirt",
            "metadata": {"name": NAME},
            "spec": {"configuration": dict(configuration or {})},
        }
        self._cluster.door().create(PATH, body)
        self._cluster.door().patch(f"{PATH}/{NAME}/status", {"status": {"phase": "Deployed"}})

    def configure(self, configuration: Mapping[str, Any]) -> None:
        """Have the KubeVirt object configure this, and nothing else."""
        change = [{"op": "replace", "path": "/spec/configuration", "value": dict(configuration)}]
        self._cluster.door().patch(f"{PATH}/{NAME}", change, JSON_PATCH)

    def revoke(self) -> None:
        """Take the KubeVirt object away."""
        door = self._cluster.door()
        door.delete(f"{PATH}/{NAME}", uid=door.get(f"{PATH}/{NAME}")["metadata"]["uid"])

    def _bring_up(self) -> None:
        """Start it; return when it is healthy. Whoever led before is gone, so nobody has to wait for his lease."""
        door = self._cluster.door()
        door.run(absent_ok(door.api.request("DELETE", LEASE)))
        self.server.start()
        await_ready("virt-controller", lambda: answers(self._url, self._certificate), [self.server], SECONDS)

    def stop(self) -> None:
        """End it, as a crash would."""
        self.server.kill()
