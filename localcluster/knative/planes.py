"""Knative Eventing as processes: its control plane, and the data plane of ingress, filter and channel."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.knative.control_plane import CONTROL_PLANE_ENV, ControlPlane
from localcluster.knative.fake_kubelet import FakeKubelet
from localcluster.knative.install import EVENTING
from localcluster.knative.proxy import Proxy
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.programs import build
from localcluster.readiness import is_responding
from localcluster.servers import LOOPBACK

DISPATCHER_PORTS = (8080, 8443)
"""The ports that are hard-coded in the in-memory channel's dispatcher."""
PROBE_HEADERS = {"User-Agent": "kube-probe/1"}  # The readiness endpoint responds only to kubelet probes.
TIMEOUT_SECONDS = 60


class KnativePlanes:
    """Knative on a cluster that was started with `install.APISERVER_FLAGS`; only one instance per host."""

    # The dispatcher must start first: other processes try to listen on one of its ports, and continue if it is taken.
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
        """Return all processes."""
        return [self.proxy.server, *self.control_plane.servers, *self.data_plane.values()]

    def start(self) -> None:
        """Install and start Knative; return when its objects can be created."""
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
        """Return whether the dispatcher listens on its port.

        A Knative adapter that starts before the dispatcher would use this port for its own probes.
        """
        return is_responding(self.get_readiness_url("dispatcher"), headers=PROBE_HEADERS)

    def get_readiness_url(self, name: str) -> str:
        """Return the readiness URL of one of `parts`, which responds only to requests with the `PROBE_HEADERS`."""
        return f"http://{LOOPBACK}:{self._ports[name]}/healthz"

    def kill_part(self, name: str) -> None:
        """Kill one of `parts` to simulate a crash."""
        self.data_plane[name].kill()

    def _build_data_plane_server(self, deployment: str, **ports: str) -> Server:
        """Return a data plane process that trusts the API server's certificate when it fetches token keys."""
        trust = {"SSL_CERT_FILE": str(self._issuer_ca_file)}
        return self.kubelet.build_server(EVENTING.namespace, deployment, PROFILING_PORT="0", **ports, **trust)

    def _build_port_variables(self, name: str, variable: str) -> dict[str, str]:
        return {variable: str(self._ports[name]), f"{variable}_HTTPS": str(reserve_port())}


@contextmanager
def reserve_ports() -> Iterator[None]:
    """Reserve the dispatcher's ports while the block runs: Knative's adapters use one of them for probes if it is free.

    Raises `LocalClusterError` if one of them is taken.
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
