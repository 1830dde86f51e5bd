"""Knative's control planes as processes: controllers and admission webhooks, without a data plane for events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.fake_kubelet import FakeKubelet
from localcluster.knative.install import KnativeProject
from localcluster.processes import Server, Startable, kill_all, reserve_port, wait_until_ready
from localcluster.programs import build
from localcluster.servers import NO_PROXY_LOCAL_ENV

# High client limits for bursts, and less frequent garbage collection, since the heaps are small.
CONTROL_PLANE_ENV = {"KUBE_API_QPS": "500", "KUBE_API_BURST": "1000", "GOGC": "400"}
TIMEOUT_SECONDS = 60


class ControlPlane(Startable):
    """The control planes of Knative projects on a cluster that was started with `install.APISERVER_FLAGS`.

    Args:
        directory: The directory for logs.
        projects: The Knative projects.
        environment: Variables that every process gets in addition to its own.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        projects: Sequence[KnativeProject],
        environment: Mapping[str, str] = NO_PROXY_LOCAL_ENV,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster, self._projects = cluster, projects
        variables = {**environment, **CONTROL_PLANE_ENV}
        self._kubelets = [
            FakeKubelet(cluster, build.ensure_programs(project.toolset), directory, variables) for project in projects
        ]
        self._ports = [{service: reserve_port() for service in project.webhooks} for project in projects]
        self.servers: list[Server] = []

    def install(self) -> None:
        """Apply the manifests of all projects."""
        for project, ports in zip(self._projects, self._ports, strict=True):
            install.install_project(self._cluster, project, ports)

    def _start_and_wait(self) -> None:
        """Start the processes of all projects; return when their objects can be created."""
        for project, kubelet, ports in zip(self._projects, self._kubelets, self._ports, strict=True):
            for name in project.controllers:
                self.servers.append(kubelet.build_server(project.namespace, name, PROFILING_PORT=str(reserve_port())))
            for service, name in project.webhooks.items():
                port_variables = {"WEBHOOK_PORT": str(ports[service]), "PROFILING_PORT": str(reserve_port())}
                self.servers.append(kubelet.build_server(project.namespace, name, **port_variables))
        for server in self.servers:
            server.start()
        self._wait_for_webhooks()

    def stop(self) -> None:
        """Kill all processes; none of them holds state."""
        kill_all(self.servers)

    def _wait_for_webhooks(self) -> None:
        """Wait until the webhooks have written their certificates, and the API server calls and trusts the webhooks."""
        has_ca_bundle = "--for=jsonpath={.webhooks[0].clientConfig.caBundle}"
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            self._cluster.kubectl("wait", kind, "--all", has_ca_bundle, f"--timeout={TIMEOUT_SECONDS}s")
        file_arguments = [argument for project in self._projects for argument in ("-f", project.dry_run_file)]
        dry_run = ("apply", "--dry-run=server", "-n", "default", *file_arguments)
        wait_until_ready(
            "Knative's admission webhooks",
            lambda: self._cluster.kubectl(*dry_run, check=False).returncode == 0,
            self.servers,
            TIMEOUT_SECONDS,
        )
