"""Runs Knative as processes: its projects' control planes, and Eventing's data plane of ingress, filter and channel.

An nginx reverse proxy replaces cluster DNS: it selects the local port by the host name of the request.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from string import Template

from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.knative import install
from localcluster.knative.fake_kubelet import FakeKubelet
from localcluster.knative.install import EVENTING, KnativeProject
from localcluster.processes import Server, Startable, kill_all, reserve_port, wait_until_ready
from localcluster.programs import build
from localcluster.programs.packages import find_program
from localcluster.readiness import is_responding
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV

DISPATCHER_PORTS = (8080, 8443)
"""The ports that are hard-coded in the in-memory channel's dispatcher."""
PROBE_HEADERS = {"User-Agent": "kube-probe/1"}  # The readiness endpoint responds only to kubelet probes.
TIMEOUT_SECONDS = 60
# High client limits for bursts, and less frequent garbage collection, since the heaps are small.
CONTROL_PLANE_ENV = {"KUBE_API_QPS": "500", "KUBE_API_BURST": "1000", "GOGC": "400"}
CONFIG_TEMPLATE = Path(__file__).with_name("nginx.conf")


class KnativePlanes:
    """Knative on a cluster that was started with `install.APISERVER_FLAGS`; only one instance can run per host."""

    # The dispatcher must start first: other processes try to use one of its ports, and continue if the port is taken.
    parts: tuple[str, ...] = ("dispatcher", "ingress", "filter")

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = {"ingress": reserve_port(), "filter": reserve_port(), "dispatcher": DISPATCHER_PORTS[0]}
        self.proxy = Proxy(directory / "nginx", self._ports)
        environment = {**self.proxy.build_environment(), **CONTROL_PLANE_ENV}
        self.kubelet = FakeKubelet(cluster, build.ensure_programs(build.KNATIVE), directory, environment)
        self.control_plane = ControlPlane(cluster, directory, (EVENTING,), environment)
        self._cluster, self._issuer_ca_file = cluster, directory / "issuer.crt"
        self.ingress_url = f"http://{LOOPBACK}:{self._ports['ingress']}"
        self.data_plane: dict[str, Server] = {}

    @property
    def servers(self) -> list[Server]:
        """Return the processes of the proxy, the control plane and the data plane."""
        return [self.proxy.server, *self.control_plane.servers, *self.data_plane.values()]

    def start(self) -> None:
        """Install and start Knative; return when its webhooks accept Knative objects."""
        with reserve_ports():
            self.proxy.server.start()
            self.control_plane.install()
        self._issuer_ca_file.write_text(self._cluster.certificate)
        self.data_plane = {
            "dispatcher": self._build_data_plane_server("imc-dispatcher"),
            "ingress": self._build_data_plane_server(
                "mt-broker-ingress", **self._build_port_variables("ingress", "INGRESS_PORT")
            ),
            "filter": self._build_data_plane_server(
                "mt-broker-filter", **self._build_port_variables("filter", "FILTER_PORT")
            ),
        }
        for name in self.parts:
            self.start_part(name)
        self.control_plane.start()

    def start_part(self, name: str) -> None:
        """Start one of `parts`; return when it is ready."""
        server = self.data_plane[name]
        server.start()
        wait_until_ready(
            name, lambda: is_responding(self.get_readiness_url(name), headers=PROBE_HEADERS), [server], TIMEOUT_SECONDS
        )

    def is_dispatcher_ready(self) -> bool:
        """Return whether the dispatcher responds on its port.

        If a Knative adapter started before the dispatcher, the adapter would use this port for its own probes.
        """
        return is_responding(self.get_readiness_url("dispatcher"), headers=PROBE_HEADERS)

    def get_readiness_url(self, name: str) -> str:
        """Return the readiness URL of one of `parts`, which responds only to requests with the `PROBE_HEADERS`."""
        return f"http://{LOOPBACK}:{self._ports[name]}/healthz"

    def kill_part(self, name: str) -> None:
        """Kill one of `parts` to simulate a crash."""
        self.data_plane[name].kill()

    def _build_data_plane_server(self, deployment: str, **ports: str) -> Server:
        """Return a data plane process that trusts the API server's certificate when it fetches the token keys."""
        trust = {"SSL_CERT_FILE": str(self._issuer_ca_file)}
        return self.kubelet.build_server(EVENTING.namespace, deployment, PROFILING_PORT="0", **ports, **trust)

    def _build_port_variables(self, name: str, variable: str) -> dict[str, str]:
        return {variable: str(self._ports[name]), f"{variable}_HTTPS": str(reserve_port())}


@contextmanager
def reserve_ports() -> Iterator[None]:
    """Reserve the dispatcher's ports during the `with` block, because Knative's adapters use a free one for probes.

    Raises `LocalClusterError` if a port is in use.
    """
    with ExitStack() as sockets:
        for port in DISPATCHER_PORTS:
            _bind_port(sockets.enter_context(socket.socket()), port)
        yield


def _bind_port(listener: socket.socket, port: int) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Go's listeners set this option, too.
    try:
        listener.bind(("", port))
        listener.listen()
    except OSError:
        raise LocalClusterError(
            f"port {port} is in use, but Knative's in-memory channel requires it: stop the program that "
            f"`ss -ltnp sport = :{port}` shows, or the other cluster with DELIVERY=knative"
        ) from None


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
        """Apply the manifests of the Knative projects."""
        for project, ports in zip(self._projects, self._ports, strict=True):
            install.install_project(self._cluster, project, ports)

    def _start_and_wait(self) -> None:
        """Start the processes of the projects; return when the webhooks accept objects of the projects."""
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
        """Kill all processes, which have no state to save."""
        kill_all(self.servers)

    def _wait_for_webhooks(self) -> None:
        """Wait until the webhooks have written their CA bundles, and a dry run through the webhooks succeeds."""
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


def check_nginx() -> None:
    """Raise `LocalClusterError` if nginx is not installed; an nginx process replaces cluster DNS."""
    find_program("nginx")


class Proxy:
    """The nginx process that forwards requests to the ports of `ingress`, `filter` and `dispatcher` by host name."""

    def __init__(self, directory: Path, ports: Mapping[str, int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = reserve_port()
        self.url = f"http://{LOOPBACK}:{port}"
        file = directory / "nginx.conf"
        file.write_text(Template(CONFIG_TEMPLATE.read_text()).substitute(ports, directory=directory, port=port))
        command: list[str | Path] = [find_program("nginx"), "-p", directory, "-e", "stderr", "-c", file]
        self.server = Server("nginx", command, directory / "nginx.log")

    def build_environment(self) -> dict[str, str]:
        """Return the environment variables that make a process send its requests through this proxy."""
        return {**NO_PROXY_LOCAL_ENV, "HTTP_PROXY": self.url, "http_proxy": self.url}
