"""What the product is on every real engine: a process per function, the sources' adapters, a data plane in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from eventing.local.manifests import LOADER
from localcluster.cluster import LocalCluster
from localcluster.functions import FunctionProcesses, served
from localcluster.processes import Server, Startable, kill_all, start_saying
from localcluster.wings.choice import Wings

WATCHING = "Starting in resilient mode"
"""What the adapter of an ApiServerSource says in its log when it is at work."""


class DataPlane(Protocol):
    """What carries the events.

    Attributes:
        parts: what can be started and killed by itself, in the order of their start.
    """

    parts: tuple[str, ...]

    @property
    def servers(self) -> Sequence[Server]:
        """Give every process."""

    def start_part(self, name: str) -> None:
        """Start one part; return when it is ready."""

    def kill_part(self, name: str) -> None:
        """End one part as a crash would."""


class EngineProduct(Startable):
    """The product on an engine: each part can be killed and started again by its name.

    In: a cluster, a folder for logs and the journal, where the broker takes events, and the wings.
    A subclass gives `planes`, fills `adapters`, and says how it is brought up and how Triggers are routed.
    """

    planes: DataPlane

    def __init__(self, cluster: LocalCluster, directory: Path, broker_url: str, wings: Wings) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster, self._directory = cluster, directory
        self.broker_url = broker_url
        self.functions_url = ""
        self.journal = directory / "journal.db"
        self._functions = FunctionProcesses(cluster, directory, broker_url, self.journal, served(wings))
        self.adapters: dict[str, Server] = {}

    @property
    def functions(self) -> dict[str, Server]:
        """Give the functions' processes by name."""
        return self._functions.servers

    @property
    def servers(self) -> list[Server]:
        """Give every process."""
        return [*self.planes.servers, *self.functions.values(), *self.adapters.values()]

    def function_url(self, name: str) -> str:
        """Give the address of a function's process."""
        return self._functions.url(name)

    def stop(self) -> None:
        """Stop the sources first, then the functions, then the broker; what is in it is of no use to anybody."""
        kill_all(self.servers)

    def ask_at(self, url: str) -> None:
        """Have the functions, none of which was started yet, send their requests to the API server there."""
        self._functions.asking = url

    def start_functions(self, *names: str) -> None:
        """Start these functions' processes, all if none is named; return when they are ready."""
        self._functions.start(*names)

    def kill_functions(self, *names: str) -> None:
        """End these functions' processes as a crash would, all if none is named."""
        self._functions.kill(*names)

    def start_data(self, *names: str) -> None:
        """Start these parts of the broker's data plane, all if none is named; return when they are ready."""
        for name in names or self.planes.parts:
            self.planes.start_part(name)

    def kill_data(self, *names: str) -> None:
        """End these parts of the broker's data plane as a crash would, all if none is named."""
        for name in names or self.planes.parts:
            self.planes.kill_part(name)

    def start_delivery(self) -> None:
        """Start what is down of the broker's data plane and the sources; return when it is ready."""
        self.start_data()
        watchers = [server for server in self.adapters.values() if "K_SOURCE_CONFIG" in server.env]
        for server in self.adapters.values():
            if server not in watchers:
                server.start()
        start_saying(WATCHING, watchers)

    def kill_delivery(self) -> None:
        """End the sources and the broker's data plane as a crash would."""
        kill_all(list(self.adapters.values()))
        self.kill_data()

    def route(self, url_of: Callable[[str], str]) -> None:
        """Have every Trigger call its function at another address; dead letters go where they went."""
        raise NotImplementedError

    def _shipped(self, *folders: Path, url_of: Callable[[str], str] | None = None) -> list[dict[str, Any]]:
        """What we ship, as kustomize renders it, but for where functions are called: their processes if not said."""
        found = [self._cluster.kubectl("kustomize", folder).stdout for folder in folders]
        bodies = [body for text in found for body in yaml.load_all(text, Loader=LOADER)]
        # The webhook is a process here, which `localcluster.admission` puts beside every engine, or leaves out.
        bodies = [body for body in bodies if not _is_admission(body)]
        return [self._functions.addressed(body, url_of or self.function_url) for body in bodies]


def _is_admission(body: dict[str, Any]) -> bool:
    return bool((body["metadata"].get("labels") or {}).get("app.kubernetes.io/component") == "admission")
