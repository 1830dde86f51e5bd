"""Knative Eventing's control and data planes as processes: webhooks, controllers, ingress, filter, channel."""

from __future__ import annotations

import socket
from pathlib import Path

from localcluster import build
from localcluster.api import Api
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.knative import install
from localcluster.knative.install import NAMESPACE
from localcluster.knative.kubelet import Kubelet
from localcluster.knative.proxy import Proxy
from localcluster.processes import Server, await_ready, free_port
from localcluster.servers import LOOPBACK

DISPATCHER_PORTS = (8080, 8443)
"""Written into the in-memory channel's dispatcher."""
WEBHOOK_SERVICES = {"eventing-webhook": "eventing-webhook", "inmemorychannel-webhook": "imc-controller"}
"""Service and the Deployment that answers it."""
PROBE = {"User-Agent": "kube-probe/1"}  # only a kubelet is told whether they are ready
# Bursts are not held up by the client; and small heaps that are collected less often leave more of a small machine.
SETTINGS = {"KUBE_API_QPS": "500", "KUBE_API_BURST": "1000", "GOGC": "400"}
SECONDS = 60


class Planes:
    """Knative on a cluster that was started with `install.APISERVER_FLAGS`; one at a time on a machine."""

    # The dispatcher first of all: others try for one of its ports, too, and go on without it.
    parts: tuple[str, ...] = ("dispatcher", "ingress", "filter")

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster = cluster
        self._ports = {"ingress": free_port(), "filter": free_port(), "dispatcher": DISPATCHER_PORTS[0]}
        self._webhook_ports = {service: free_port() for service in WEBHOOK_SERVICES}
        self.proxy = Proxy(directory / "nginx", self._ports)
        programs = build.servers(build.KNATIVE)
        self.kubelet = Kubelet(cluster, programs, directory, {**self.proxy.environment(), **SETTINGS})
        self.ingress_url = f"http://{LOOPBACK}:{self._ports['ingress']}"
        self.data: dict[str, Server] = {}
        self.control: list[Server] = []

    @property
    def servers(self) -> list[Server]:
        """Give every process."""
        return [self.proxy.server, *self.control, *self.data.values()]

    def start(self) -> None:
        """Install Knative and start it; return when its objects can be created."""
        _check_ports()
        self.proxy.server.start()
        install.install(self._cluster, self._webhook_ports)
        self.data = {
            "dispatcher": self.kubelet.server(NAMESPACE, "imc-dispatcher", PROFILING_PORT="0"),
            "ingress": self._data_plane("ingress", "INGRESS_PORT"),
            "filter": self._data_plane("filter", "FILTER_PORT"),
        }
        for name in self.parts:
            self.start_part(name)
        self.control = [
            *(self._controller(name) for name in ("eventing-controller", "mt-broker-controller")),
            *(self._webhook(service) for service in WEBHOOK_SERVICES),
        ]
        for server in self.control:
            server.start()
        self._await_webhooks()

    def start_part(self, name: str) -> None:
        """Start one of `parts`; return when it is ready."""
        server, api = self.data[name], Api(f"http://{LOOPBACK}:{self._ports[name]}", headers=PROBE)
        server.start()
        await_ready(name, lambda: api.answers("/healthz"), [server], SECONDS)

    def kill_part(self, name: str) -> None:
        """End one of `parts` as a crash would."""
        self.data[name].kill()

    def _data_plane(self, name: str, variable: str) -> Server:
        ports = {variable: str(self._ports[name]), f"{variable}_HTTPS": str(free_port()), "PROFILING_PORT": "0"}
        return self.kubelet.server(NAMESPACE, f"mt-broker-{name}", **ports)

    def _controller(self, deployment: str) -> Server:
        return self.kubelet.server(NAMESPACE, deployment, PROFILING_PORT=str(free_port()))

    def _webhook(self, service: str) -> Server:
        ports = {"WEBHOOK_PORT": str(self._webhook_ports[service]), "PROFILING_PORT": str(free_port())}
        return self.kubelet.server(NAMESPACE, WEBHOOK_SERVICES[service], **ports)

    def _await_webhooks(self) -> None:
        """Wait until the webhooks wrote their certificates, and the API server calls them and believes them."""
        trusted = "--for=jsonpath={.webhooks[0].clientConfig.caBundle}"
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            self._cluster.kubectl("wait", kind, "--all", trusted, f"--timeout={SECONDS}s")
        trial = ("apply", "--dry-run=server", "-n", "default", "-f", install.HERE / "trial.yaml")
        await_ready(
            "Knative's admission",
            lambda: self._cluster.kubectl(*trial, check=False).returncode == 0,
            self.control,
            SECONDS,
        )


def _check_ports() -> None:
    for port in DISPATCHER_PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go does
            try:
                probe.bind(("", port))
            except OSError:
                raise LocalClusterError(
                    f"port {port} is taken (`ss -ltnp sport = :{port}` says by whom), and Knative's in-memory channel "
                    "knows no other: end that program, or another cluster with DELIVERY=knative"
                ) from None
