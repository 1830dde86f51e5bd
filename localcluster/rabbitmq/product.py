"""The product on a RabbitMQ Broker: the broker's data plane, a process per function, the sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from eventing import manifests, triggers
from eventing.manifests import Document
from functions.app import FUNCTIONS
from localcluster import build
from localcluster.cluster import LocalCluster
from localcluster.functions import FunctionProcesses
from localcluster.processes import Server, Startable, free_port
from localcluster.product import ROOT
from localcluster.rabbitmq.keeper import Keeper
from localcluster.rabbitmq.planes import Planes, start_saying
from localcluster.rabbitmq.sources import Sources
from localcluster.servers import LOOPBACK

FLOW = (ROOT / "manifests" / "overlays" / "rabbitmq", ROOT / "manifests" / "v1alpha1")
INSTALLED = (ROOT / "manifests" / "base" / "crds", ROOT / "manifests" / "base" / "rbac")
WATCHING = "Starting in resilient mode"
"""What an adapter says in its log when it is at work."""
PARTS = ("rabbitmq", "ingress", "dispatchers")
"""The broker's data plane, in the order of its start."""


class RabbitProduct(Startable):
    """The product as it is on a cluster with RabbitMQ: each part can be killed and started again.

    In: a cluster with the manifests installed, and a folder for logs, RabbitMQ's data and the journal.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster, self._directory = cluster, directory
        port = free_port()
        self.broker_url = f"http://{LOOPBACK}:{port}"
        self.journal = directory / "journal.db"
        self._functions = FunctionProcesses(cluster, directory, self.broker_url, self.journal)
        self.functions = {name: self._functions.server(name) for name in FUNCTIONS}
        self._routes = {name: self.function_url(name) for name in FUNCTIONS}
        found = self._documents()
        broker = next(document.name for document in found if document.kind == "Broker")
        self.planes = Planes(directory / "rabbitmq", broker, port, triggers.read(found, "").values())
        self.adapters = Sources(cluster, build.servers(build.RABBITMQ), directory, self.broker_url).servers(found)
        self._keeper = Keeper()

    @property
    def servers(self) -> list[Server]:
        """Give every process."""
        return [*self.planes.servers, *self.functions.values(), *self.adapters.values()]

    def function_url(self, name: str) -> str:
        """Give the address of a function's process."""
        return self._functions.url(name)

    def _bring_up(self) -> None:
        """Start all; return when events flow."""
        for server in self.functions.values():  # they take longest, and need nobody
            server.start()
        self.start_delivery()
        self.start_functions()
        self._keeper.keep(self.servers)

    def stop(self) -> None:
        """End all; what is in the queues is of no use to anybody."""
        self._keeper.stop()
        for server in reversed(self.servers):
            server.kill()

    def start_functions(self, *names: str) -> None:
        """Start these functions' processes, all if none is named; return when they are ready."""
        chosen = [self.functions[name] for name in names or self.functions]
        for server in chosen:
            server.start()
        for server in chosen:
            self._functions.await_ready(server)

    def kill_functions(self, *names: str) -> None:
        """End these functions' processes as a crash would, all if none is named."""
        for name in names or self.functions:
            self.functions[name].kill()

    def start_data(self, *names: str) -> None:
        """Start these parts of the broker's data plane, all if none is named; return when they are ready."""
        for name in names or PARTS:
            self.planes.start(name)

    def kill_data(self, *names: str) -> None:
        """End these parts of the broker's data plane as a crash would, all if none is named."""
        for name in names or PARTS:
            self.planes.kill(name)

    def start_delivery(self) -> None:
        """Start what is down of the broker's data plane and the sources; return when it is ready."""
        self.start_data()
        adapters = [server for server in self.adapters.values() if "K_SOURCE_CONFIG" in server.env]
        for server in self.adapters.values():
            if server not in adapters:
                server.start()
        start_saying(WATCHING, adapters)

    def kill_delivery(self) -> None:
        """End the sources and the broker's data plane, RabbitMQ with it, as a crash would."""
        for server in self.adapters.values():
            server.kill()
        self.kill_data()

    def route(self, url_of: Callable[[str], str]) -> None:
        """Have every Trigger call its function at another address; dead letters go where they went."""
        was = {url: name for name, url in self._routes.items()}
        self._routes = {name: url_of(name) for name in FUNCTIONS}
        self.planes.route(lambda url: self._routes[was[url]] if url in was else url)

    def add_trigger(self, body: dict[str, Any]) -> None:
        """Serve one more Trigger, whose addresses are all `uri`."""
        (trigger,) = triggers.read([Document(self._directory / "added", body)], "").values()
        self.planes.add(trigger)
        self._keeper.keep(self.servers)

    def _documents(self) -> list[Document]:
        """What we ship, as kustomize renders it; only the functions' addresses are those of local processes."""
        file = self._directory / "manifests.yaml"
        found = [self._cluster.kubectl("kustomize", folder).stdout for folder in FLOW]
        bodies = [self._functions.addressed(body) for text in found for body in yaml.safe_load_all(text)]
        file.write_text(yaml.safe_dump_all(bodies))
        return manifests.read([file])


def install(cluster: LocalCluster) -> None:
    """Apply the CRDs and the RBAC, and wait until the API server serves the new kinds."""
    for folder in INSTALLED:
        cluster.kubectl("apply", "--server-side", "-k", folder)
    cluster.kubectl("apply", "--server-side", "-f", ROOT / "manifests" / "v1alpha1" / "crd.yaml")
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
