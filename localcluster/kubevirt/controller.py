"""KubeVirt's virt-controller on a local cluster: it creates the VMIs, virt-launcher pods, migrations and budgets.

The rest of KubeVirt does not run. A fake must replace virt-handler on each node. This module does what KubeVirt's
operator does before virt-controller starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kube.client.api import JSON_PATCH, absent_ok
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
"""The nodes here are fake and pull no images."""
SECONDS = 60


class VirtController(Startable):
    """The virt-controller process. Call `install` before the first start; the process can be started again.

    Args:
        directory: The directory for the log.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        program = build.servers(build.KUBEVIRT) / "virt-controller"
        port = free_port()
        self._url = f"https://{LOOPBACK}:{port}/healthz"
        pki = cluster.directory / "pki"  # any certificate for this address works
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
        """Apply KubeVirt's CRDs and create its namespace."""
        crds.install(self._cluster, (*crds.KINDS, *crds.WATCHED))
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self._cluster.door().create("/api/v1/namespaces", body)

    def declare(self, configuration: Mapping[str, Any] | None = None) -> None:
        """Create the KubeVirt object with this configuration, and set its phase to Deployed."""
        body = {
            "apiVersion": f"{crds.GROUP}/{crds.STORED}",
            "kind": "KubeVirt",
            "metadata": {"name": NAME},
            "spec": {"configuration": dict(configuration or {})},
        }
        self._cluster.door().create(PATH, body)
        self._cluster.door().patch(f"{PATH}/{NAME}/status", {"status": {"phase": "Deployed"}})

    def configure(self, configuration: Mapping[str, Any]) -> None:
        """Replace the configuration in the KubeVirt object."""
        change = [{"op": "replace", "path": "/spec/configuration", "value": dict(configuration)}]
        self._cluster.door().patch(f"{PATH}/{NAME}", change, JSON_PATCH)

    def revoke(self) -> None:
        """Delete the KubeVirt object."""
        door = self._cluster.door()
        door.delete(f"{PATH}/{NAME}", uid=door.get(f"{PATH}/{NAME}")["metadata"]["uid"])

    def _bring_up(self) -> None:
        """Start virt-controller; return when it is healthy.

        Deletes the lease of an earlier leader, which has ended, so that the new process need not wait until the lease
        expires.
        """
        door = self._cluster.door()
        door.run(absent_ok(door.api.request("DELETE", LEASE)))
        self.server.start()
        await_ready("virt-controller", lambda: answers(self._url, self._certificate), [self.server], SECONDS)

    def stop(self) -> None:
        """Kill virt-controller without a graceful shutdown."""
        self.server.kill()
