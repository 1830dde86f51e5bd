"""Knative Eventing as processes: its control plane, and the data plane of ingress, filter and channel."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.knative.control_plane import SETTINGS, ControlPlane
from localcluster.knative.install import EVENTING
from localcluster.knative.fake_kubelet import Kubelet
from localcluster.knative.proxy import Proxy
from localcluster.processes import Server, await_ready, free_port
from localcluster.programs import build
from localcluster.readiness import answers
from localcluster.servers import LOOPBACK
from localcluster.errors import LocalClusterError

DISPATCHER_PORTS = (8080, 8443)
"""The ports that are hard-coded in the in-memory channel's dispatcher."""
PROBE = {"User-Agent": "kube-probe/1"}  # the readiness endpoint answers only kubelet probes
SECONDS = 60


class Planes:
    """Knative on a cluster that was started with `install.APISERVER_FLAGS`; only one instance per host."""

    # The dispatcher must start first: other programs try to listen on one of its ports, and continue if it is taken.
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
        """Return all processes."""
        return [self.proxy.server, *self.control.servers, *self.data.values()]

    def start(self) -> None:
        """Install and start Knative; return when its objects can be created."""
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
        """Return whether the dispatcher listens on its port.

        A program that starts earlier would use the port for its own probes.
        """
        return answers(self.page("dispatcher"), headers=PROBE)

    def page(self, name: str) -> str:
        """Return the readiness URL of one of `parts`, which answers only requests with the `PROBE` headers."""
        return f"http://{LOOPBACK}:{self._ports[name]}/healthz"

    def kill_part(self, name: str) -> None:
        """Kill one of `parts` to simulate a crash."""
        self.data[name].kill()

    def _data_plane(self, deployment: str, **ports: str) -> Server:
        """Return a data plane process that trusts the API server's certificate when it fetches token keys."""
        trust = {"SSL_CERT_FILE": str(self._issuer)}
        return self.kubelet.server(EVENTING.namespace, deployment, PROFILING_PORT="0", **ports, **trust)

    def _ports_of(self, name: str, variable: str) -> dict[str, str]:
        return {variable: str(self._ports[name]), f"{variable}_HTTPS": str(free_port())}


@contextmanager
def reserved_ports() -> Iterator[None]:
    """Reserve the dispatcher's ports while the block runs: Knative's adapters use one of them for probes if it is free.

    Raises `LocalClusterError` if one of them is taken.
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
