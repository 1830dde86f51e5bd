"""The product on a RabbitMQ Broker: RabbitMQ, ingress, dispatchers, a process per function, the sources."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from eventing import manifests, triggers
from eventing.manifests import Document
from eventing.triggers import Trigger
from functions.app import FUNCTIONS
from localcluster import build
from localcluster.cluster import LocalCluster
from localcluster.functions import FunctionProcesses
from localcluster.processes import Server, await_ready, free_port, listens
from localcluster.product import DIRECT, FLOW, ROOT
from localcluster.rabbitmq import environment, topology
from localcluster.rabbitmq.keeper import Keeper
from localcluster.rabbitmq.server import RabbitServer
from localcluster.rabbitmq.sources import Sources
from localcluster.servers import LOOPBACK

SECONDS = 60
INSTALLED = (ROOT / "manifests" / "base" / "crds", ROOT / "manifests" / "base" / "rbac")
CONSUMING, WATCHING = "starting to process messages", "Starting in resilient mode"
"""What a dispatcher and an adapter say in their logs when they are at work."""


class RabbitProduct:
    """The product as it is on a cluster with RabbitMQ: each part can be killed and started again.

    In: a cluster with the manifests installed, and a folder for logs, RabbitMQ's data and the journal.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster, self._directory = cluster, directory
        self._programs = build.servers(build.RABBITMQ)
        self._keeper = Keeper()
        self._port = free_port()
        self.broker_url = f"http://{LOOPBACK}:{self._port}"
        self.journal = directory / "journal.db"
        self._functions = FunctionProcesses(cluster, directory, self.broker_url, self.journal)
        self.functions = {name: self._functions.server(name) for name in FUNCTIONS}
        documents = self._documents()
        self.broker = next(document.name for document in documents if document.kind == "Broker")
        self.triggers = list(triggers.read(documents, "").values())
        self.rabbitmq = RabbitServer(directory / "rabbitmq", topology.definitions(self.broker, self.triggers))
        self.ingress = self._data_plane("ingress", environment.ingress(self.broker, self.rabbitmq.url, self._port))
        self.dispatchers = dict(self._dispatchers(self.triggers))
        self.sources = Sources(cluster, self._programs, directory, self.broker_url).servers(documents)

    def __enter__(self) -> RabbitProduct:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def servers(self) -> list[Server]:
        """Give every process."""
        rabbitmq = (self.rabbitmq.mapper, self.rabbitmq.server)
        return [*rabbitmq, self.ingress, *self.dispatchers.values(), *self.functions.values(), *self.sources.values()]

    def function_url(self, name: str) -> str:
        """Give the address of a function's process."""
        return self._functions.url(name)

    def start(self) -> None:
        """Start all; return when events flow."""
        try:
            self._keeper.start(*self.functions.values())  # they take longest, and need nobody
            self.start_rabbitmq()
            self.start_delivery()
            self.start_functions()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all; what is in the queues is of no use to anybody."""
        self._keeper.stop()
        for server in reversed(self.servers):
            server.kill()

    def start_functions(self, *names: str) -> None:
        """Start these functions' processes, all if none is named; return when they are ready."""
        chosen = [self.functions[name] for name in names or self.functions]
        self._keeper.start(*chosen)
        for server in chosen:
            self._functions.await_ready(server)

    def kill_functions(self, *names: str) -> None:
        """End these functions' processes as a crash would, all if none is named."""
        self._keeper.kill(*(self.functions[name] for name in names or self.functions))

    def start_delivery(self) -> None:
        """Start what carries the events from their sources to the functions; return when it is ready."""
        self.start_ingress()
        self.start_dispatchers()
        self.start_sources()

    def kill_delivery(self) -> None:
        """End sources, ingress and dispatchers as a crash would; RabbitMQ keeps what it has."""
        self.kill_sources()
        self.kill_ingress()
        self.kill_dispatchers()

    def start_rabbitmq(self) -> None:
        """Start RabbitMQ; return when it takes connections."""
        self.rabbitmq.start()

    def kill_rabbitmq(self) -> None:
        """End RabbitMQ as a crash would."""
        self.rabbitmq.kill()

    def start_ingress(self) -> None:
        """Start the ingress; return when it takes events."""
        self._keeper.start(self.ingress)
        await_ready("ingress", lambda: listens(self._port), [self.ingress], SECONDS)

    def kill_ingress(self) -> None:
        """End the ingress as a crash would."""
        self._keeper.kill(self.ingress)

    def start_dispatchers(self) -> None:
        """Start the dispatchers; return when each takes events from its queue."""
        self._start_saying(CONSUMING, self.dispatchers.values())

    def kill_dispatchers(self) -> None:
        """End the dispatchers as a crash would."""
        self._keeper.kill(*self.dispatchers.values())

    def start_sources(self, *names: str) -> None:
        """Start these sources, all if none is named; return when Knative's adapters watch."""
        chosen = [self.sources[name] for name in names or self.sources]
        adapters = [server for server in chosen if "K_SOURCE_CONFIG" in server.env]
        self._keeper.start(*(server for server in chosen if server not in adapters))
        self._start_saying(WATCHING, adapters)

    def kill_sources(self, *names: str) -> None:
        """End these sources as a crash would, all if none is named."""
        self._keeper.kill(*(self.sources[name] for name in names or self.sources))

    def add_trigger(self, body: dict[str, Any]) -> None:
        """Serve one more Trigger, as the controller would once it is created; its addresses are all `uri`."""
        file = self._directory / "added.yaml"
        found = triggers.read([Document(file, body)], "").values()
        self.rabbitmq.declare(topology.definitions(self.broker, found))
        self.dispatchers.update(self._dispatchers(found))
        self.start_dispatchers()

    def _start_saying(self, text: str, servers: Iterable[Server]) -> None:
        """Start servers, and wait until each that was down has said so in its log."""
        down = [(server, _size(server.log)) for server in servers if not server.alive]
        self._keeper.start(*(server for server, _ in down))
        for server, size in down:
            await_ready(server.name, partial(_said, text, server.log, size), [server], SECONDS)

    def _documents(self) -> list[Document]:
        """What we ship, as kustomize renders it; only the functions' addresses are those of local processes."""
        file = self._directory / "manifests.yaml"
        found = [self._cluster.kubectl("kustomize", folder).stdout for folder in FLOW]
        bodies = [self._functions.addressed(body) for text in found for body in yaml.safe_load_all(text)]
        file.write_text(yaml.safe_dump_all(bodies))
        return manifests.read([file])

    def _dispatchers(self, found: Iterable[Trigger]) -> Iterable[tuple[str, Server]]:
        """One for each Trigger, and one for each dead letter queue."""
        addresses = (self.rabbitmq.url, self.broker_url)
        for trigger in found:
            yield self._dispatcher(environment.dispatcher(trigger, self.broker, *addresses))
            sink = trigger.policy.dead_letters
            if sink:
                yield self._dispatcher(environment.dead_letter_dispatcher(trigger, sink, *addresses))

    def _dispatcher(self, found: dict[str, str]) -> tuple[str, Server]:
        name = found["POD_NAME"]
        return name, self._data_plane("dispatcher", found, name)

    def _data_plane(self, program: str, found: dict[str, str], name: str = "") -> Server:
        name = name or program
        return Server(name, [self._programs / program], self._directory / f"{name}.log", {**DIRECT, **found})


def install(cluster: LocalCluster) -> None:
    """Apply the CRDs and the RBAC, and wait until the API server serves the new kinds."""
    for folder in INSTALLED:
        cluster.kubectl("apply", "--server-side", "-k", folder)
    cluster.kubectl("apply", "--server-side", "-f", ROOT / "manifests" / "v1alpha1" / "crd.yaml")
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _said(text: str, file: Path, position: int) -> bool:
    with file.open("rb") as log:
        log.seek(position)
        return text.encode() in log.read()
