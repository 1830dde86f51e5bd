"""Knative's control planes as processes: its controllers and admission webhooks. No event flows by these alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.install import Part
from localcluster.knative.kubelet import Kubelet
from localcluster.processes import Server, Startable, await_ready, free_port, kill_all
from localcluster.programs import build
from localcluster.servers import DIRECT

# Bursts are not held up by the client; and small heaps that are collected less often leave more of a small machine.
SETTINGS = {"KUBE_API_QPS": "500", "KUBE_API_BURST": "1000", "GOGC": "400"}
SECONDS = 60


class ControlPlane(Startable):
    """Parts of Knative on a cluster that was started with `install.APISERVER_FLAGS`.

    In: a folder for logs, the parts, and what every process gets into its environment beside its own.
    """

    def __init__(
        self, cluster: LocalCluster, directory: Path, parts: Sequence[Part], environment: Mapping[str, str] = DIRECT
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster, self._parts = cluster, parts
        more = {**environment, **SETTINGS}
        self._kubelets = [Kubelet(cluster, build.servers(part.tools), directory, more) for part in parts]
        self._ports = [{service: free_port() for service in part.webhooks} for part in parts]
        self.servers: list[Server] = []

    def install(self) -> None:
        """Apply all of the parts' manifests."""
        for part, ports in zip(self._parts, self._ports, strict=True):
            install.install(self._cluster, part, ports)

    def _bring_up(self) -> None:
        """Start all processes of what is installed; return when its objects can be created."""
        for part, kubelet, ports in zip(self._parts, self._kubelets, self._ports, strict=True):
            for name in part.controllers:
                self.servers.append(kubelet.server(part.namespace, name, PROFILING_PORT=str(free_port())))
            for service, name in part.webhooks.items():
                own = {"WEBHOOK_PORT": str(ports[service]), "PROFILING_PORT": str(free_port())}
                self.servers.append(kubelet.server(part.namespace, name, **own))
        for server in self.servers:
            server.start()
        self._await_webhooks()

    def stop(self) -> None:
        """End all; none has anything to lose."""
        kill_all(self.servers)

    def _await_webhooks(self) -> None:
        """Wait until the webhooks wrote their certificates, and the API server calls them and believes them."""
        trusted = "--for=jsonpath={.webhooks[0].clientConfig.caBundle}"
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            self._cluster.kubectl("wait", kind, "--all", trusted, f"--timeout={SECONDS}s")
        files = [word for part in self._parts for word in ("-f", part.trial)]
        trial = ("apply", "--dry-run=server", "-n", "default", *files)
        await_ready(
            "Knative's admission",
            lambda: self._cluster.kubectl(*trial, check=False).returncode == 0,
            self.servers,
            SECONDS,
        )
