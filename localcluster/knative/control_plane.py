"""Knative's control planes as processes: controllers and admission webhooks, without a data plane for events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.install import Part
from localcluster.knative.fake_kubelet import Kubelet
from localcluster.processes import Server, Startable, await_ready, free_port, kill_all
from localcluster.programs import build
from localcluster.servers import DIRECT

# High client limits for bursts, and less frequent garbage collection, since the heaps are small.
SETTINGS = {"KUBE_API_QPS": "500", "KUBE_API_BURST": "1000", "GOGC": "400"}
SECONDS = 60


class ControlPlane(Startable):
    """The control planes of Knative projects on a cluster that was started with `install.APISERVER_FLAGS`.

    Args:
        directory: The directory for logs.
        parts: The Knative projects.
        environment: Variables that every process gets in addition to its own.
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
        """Apply the manifests of all projects."""
        for part, ports in zip(self._parts, self._ports, strict=True):
            install.install(self._cluster, part, ports)

    def _bring_up(self) -> None:
        """Start the processes of all projects; return when their objects can be created."""
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
        """Kill all processes; none of them holds state."""
        kill_all(self.servers)

    def _await_webhooks(self) -> None:
        """Wait until the webhooks have written their certificates, and the API server calls and trusts the webhooks."""
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
