"""Knative Eventing as processes: its control plane, and the data plane of ingress, filter and channel."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.knative.control import SETTINGS, ControlPlane
from localcluster.knative.install import EVENTING
from localcluster.knative.kubelet import Kubelet
from localcluster.knative.proxy import Proxy
from localcluster.processes import Server, await_ready, free_port
from localcluster.programs import build
from localcluster.readiness import answers
from localcluster.servers import LOOPBACK
from localcluster.trouble import LocalClusterError

DISPATCHER_PORTS = (8080, 8443)
"""Written into the in-memory channel's dispatcher."""
PROBE = {"User-Agent": "kube-probe/1"}  # only a kubelet is told whether they are ready
SECONDS = 60


class Planes:
    """Knative on a cluster that was started with `install.APISERVER_FLAGS`; one at a time on a machine."""

    # The dispatcher first of all: others try for one of its ports, too, and go on without it.
    parts: tuple[str, ...] = ("dispatcher", "ingress", "filter")

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = {"ingress": free_port(), "filter": free_port(), "dispatcher": DISPATCHER_PORTS[0]}
        self.proxy = Proxy(directory / "nginx", self._ports)
        environment = {**self.proxy.environment(), **SETTINGS}
        self.kubelet = Kubelet(cluster, build.servers(build.KNATIVE), directory, environment)
        self.control = ControlPlane(cluster, directory, (EVENTING,), environment)
        self._cluster, self._issuer = cluster, directory / "issuer.crt"
        self.ingress_url = f"http://{LOOPBACK}:{self._ports['ingress']}"
        self.data: dict[str, Server] = {}

    @property
    def servers(self) -> list[Server]:
        """Give every process."""
        return [self.proxy.server, *self.control.servers, *self.data.values()]

    def start(self) -> None:
        """Install Knative and start it; return when its objects can be created."""
        with reserved_ports():
            self.proxy.server.start()
            self.control.install()
        self._issuer.write_text(self._cluster.certificate)
        self.data = {
            "dispatcher": self._data_plane("imc-dispatcher"),
            "ingress": self._data_plane("mt-broker-ingress", **self._ports_of("ingress", "INGRESS_PORT")),
            "filter": self._data_plane("mt-broker-filter", **self._ports_of("filter", "FILTER_PORT")),
        }
        for name in self.parts:
            self.start_part(name)
        self.control.start()

    def start_part(self, name: str) -> None:
        """Start one of `parts`; return when it is ready."""
        server = self.data[name]
        server.start()
        await_ready(name, lambda: answers(self.page(name), headers=PROBE), [server], SECONDS)

    def dispatcher_answers(self) -> bool:
        """Tell whether the dispatcher has its port: others that start before would take it for their probes."""
        return answers(self.page("dispatcher"), headers=PROBE)

    def page(self, name: str) -> str:
        """Give the readiness page of one of `parts`, which answers to `PROBE` alone."""
        return f"http://{LOOPBACK}:{self._ports[name]}/healthz"

    def kill_part(self, name: str) -> None:
        """End one of `parts` as a crash would."""
        self.data[name].kill()

    def _data_plane(self, deployment: str, **ports: str) -> Server:
        """Give one that, asked to check tokens, believes the API server which keys they are signed with."""
        trust = {"SSL_CERT_FILE": str(self._issuer)}
        return self.kubelet.server(EVENTING.namespace, deployment, PROFILING_PORT="0", **ports, **trust)

    def _ports_of(self, name: str, variable: str) -> dict[str, str]:
        return {variable: str(self._ports[name]), f"{variable}_HTTPS": str(free_port())}


@contextmanager
def reserved_ports() -> Iterator[None]:
    """Keep the dispatcher's ports from others meanwhile: Knative's adapters take one for their probes, if it is free.

    Errors: LocalClusterError when one is taken.
    """
    with ExitStack() as held:
        for port in DISPATCHER_PORTS:
            _reserve(held.enter_context(socket.socket()), port)
        yield


def _reserve(listener: socket.socket, port: int) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go does
    try:
        listener.bind(("", port))
        listener.listen()
    except OSError:
        raise LocalClusterError(
            f"port {port} is taken (`ss -ltnp sport = :{port}` says by whom), and Knative's in-memory channel "
            "knows no other: end that program, or another cluster with DELIVERY=knative"
        ) from None
