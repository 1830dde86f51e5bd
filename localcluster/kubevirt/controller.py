"""KubeVirt's virt-controller on a local cluster: it creates the VMIs, virt-launcher pods, migrations and budgets.

A fake must replace virt-handler on each node. Before virt-controller starts, this module does what KubeVirt's operator
would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kube.client.api import JSON_PATCH, get_or_none
from localcluster.cluster import LocalCluster
from localcluster.kubevirt import crds
from localcluster.processes import Server, Startable, reserve_port, wait_until_ready
from localcluster.programs import build
from localcluster.readiness import is_responding
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT

NAMESPACE = KUBEVIRT_NAME = "kubevirt"
KUBEVIRTS_PATH = f"/apis/{crds.GROUP}/{crds.STORAGE_VERSION}/namespaces/{NAMESPACE}/kubevirts"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/virt-controller"
FAKE_IMAGE = "fake"
"""An image name that is never pulled, because the nodes are fake."""
TIMEOUT_SECONDS = 60


class VirtController(Startable):
    """The virt-controller process. Call `install_crds` before the first start; the process can be started again.

    Args:
        directory: The directory for the log.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        program = build.ensure_programs(build.KUBEVIRT) / "virt-controller"
        port = reserve_port()
        self._url = f"https://{LOOPBACK}:{port}/healthz"
        pki = cluster.directory / "pki"  # Any certificate for this address is sufficient.
        self._certificate = pki / "apiserver.crt"
        flags = {
            "kubeconfig": cluster.kubeconfig,
            "launcher-image": FAKE_IMAGE,
            "exporter-image": FAKE_IMAGE,
            "listen": LOOPBACK,
            "port": port,
            "prom-cert-file": self._certificate,
            "prom-key-file": pki / "apiserver.key",
        }
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        directory.mkdir(parents=True, exist_ok=True)
        self.server = Server(
            "virt-controller", [program, *arguments], directory / "virt-controller.log", NO_PROXY_LOCAL_ENV, ROOT
        )

    def install_crds(self) -> None:
        """Apply KubeVirt's CRDs and create its namespace."""
        crds.install_crds(self._cluster, (*crds.INSTALLED_CRDS, *crds.WATCHED_CRDS))
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self._cluster.get_client().create("/api/v1/namespaces", body)

    def create_kubevirt(self, configuration: Mapping[str, Any] | None = None) -> None:
        """Create the KubeVirt object with this configuration, and set its phase to Deployed."""
        body = {
            "apiVersion": f"{crds.GROUP}/{crds.STORAGE_VERSION}",
            "kind": "KubeVirt",
            "metadata": {"name": KUBEVIRT_NAME},
            "spec": {"configuration": dict(configuration or {})},
        }
        self._cluster.get_client().create(KUBEVIRTS_PATH, body)
        self._cluster.get_client().patch(f"{KUBEVIRTS_PATH}/{KUBEVIRT_NAME}/status", {"status": {"phase": "Deployed"}})

    def configure(self, configuration: Mapping[str, Any]) -> None:
        """Replace the configuration in the KubeVirt object."""
        change = [{"op": "replace", "path": "/spec/configuration", "value": dict(configuration)}]
        self._cluster.get_client().patch(f"{KUBEVIRTS_PATH}/{KUBEVIRT_NAME}", change, JSON_PATCH)

    def delete_kubevirt(self) -> None:
        """Delete the KubeVirt object."""
        client, path = self._cluster.get_client(), f"{KUBEVIRTS_PATH}/{KUBEVIRT_NAME}"
        client.delete(path, uid=client.get(path)["metadata"]["uid"])

    def _start_and_wait(self) -> None:
        """Start virt-controller; return when it is healthy.

        First delete the Lease of an earlier leader, which has ended, so that the new process need not wait until the
        Lease expires.
        """
        client = self._cluster.get_client()
        client.run(get_or_none(client.api.request("DELETE", LEASE_PATH)))
        self.server.start()
        wait_until_ready(
            "virt-controller", lambda: is_responding(self._url, self._certificate), [self.server], TIMEOUT_SECONDS
        )

    def stop(self) -> None:
        """Kill virt-controller without a graceful shutdown."""
        self.server.kill()
