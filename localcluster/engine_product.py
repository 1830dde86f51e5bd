"""The product on an engine with a real broker: a process per function, source adapters, and the broker's data plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.components.selection import Components
from localcluster.functions import FunctionProcesses, list_functions
from localcluster.processes import Server, Startable, kill_all, start_and_wait_for_log

WATCHING_LOG_LINE = "Starting in resilient mode"
"""The message that the adapter of an ApiServerSource logs once it watches."""


class DataPlane(Protocol):
    """The processes that deliver the events.

    Attributes:
        parts: The names of the parts that can be started and killed separately, in start order.
    """

    parts: tuple[str, ...]

    @property
    def servers(self) -> Sequence[Server]:
        """Return the processes of all parts."""

    def start_part(self, name: str) -> None:
        """Start one part; return when it is ready."""

    def kill_part(self, name: str) -> None:
        """Kill one part to simulate a crash."""


class EngineProduct(Startable):
    """The product on an engine with a real broker; each of its parts can be killed and restarted by name.

    A subclass provides `planes`, fills `adapters`, and implements `_start_and_wait` and `route_triggers`.

    Args:
        directory: The directory for logs and the journal.
        broker_url: The URL at which the broker accepts events.
        components: The installed components.
    """

    planes: DataPlane

    def __init__(self, cluster: LocalCluster, directory: Path, broker_url: str, components: Components) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster, self._directory = cluster, directory
        self.broker_url = broker_url
        self.functions_url = ""
        self.journal = directory / "journal.db"
        self._functions = FunctionProcesses(cluster, directory, broker_url, self.journal, list_functions(components))
        self.adapters: dict[str, Server] = {}

    @property
    def functions(self) -> dict[str, Server]:
        """Return the functions' processes by name."""
        return self._functions.servers

    @property
    def servers(self) -> list[Server]:
        """Return the processes of the broker, the functions and the source adapters."""
        return [*self.planes.servers, *self.functions.values(), *self.adapters.values()]

    def get_function_url(self, name: str) -> str:
        """Return the URL of a function's process."""
        return self._functions.get_url(name)

    def stop(self) -> None:
        """Kill all processes: source adapters first, then functions, then the broker. Undelivered events are lost."""
        kill_all(self.servers)

    def set_api_url(self, url: str) -> None:
        """Make the functions send their API requests to this URL; must be called before any function starts."""
        self._functions.api_url = url

    def start_functions(self, *names: str) -> None:
        """Start these functions' processes, or all without arguments; return when they are ready."""
        self._functions.start(*names)

    def kill_functions(self, *names: str) -> None:
        """Kill these functions' processes to simulate a crash; without arguments, kill all of them."""
        self._functions.kill(*names)

    def start_data_plane(self, *names: str) -> None:
        """Start these parts of the broker's data plane, or all without arguments; return when they are ready."""
        for name in names or self.planes.parts:
            self.planes.start_part(name)

    def kill_data_plane(self, *names: str) -> None:
        """Kill these parts of the broker's data plane to simulate a crash; without arguments, kill all of them."""
        for name in names or self.planes.parts:
            self.planes.kill_part(name)

    def start_delivery(self) -> None:
        """Start the broker's data plane and the source adapters where they are stopped; return when they are ready."""
        self.start_data_plane()
        watchers = [server for server in self.adapters.values() if "K_SOURCE_CONFIG" in server.env]
        for server in self.adapters.values():
            if server not in watchers:
                server.start()
        start_and_wait_for_log(WATCHING_LOG_LINE, watchers)

    def kill_delivery(self) -> None:
        """Kill the source adapters and the broker's data plane to simulate a crash."""
        kill_all(list(self.adapters.values()))
        self.kill_data_plane()

    def route_triggers(self, get_url: Callable[[str], str]) -> None:
        """Make every Trigger call its function at the URL from `get_url`; the dead letter sinks do not change."""
        raise NotImplementedError

    def _render_manifests(
        self, *directories: Path, get_url: Callable[[str], str] | None = None
    ) -> list[dict[str, Any]]:
        """Render the manifests with kustomize, and set the URLs of the Triggers' subscribers.

        Args:
            directories: The directories to render.
            get_url: Returns a function's URL; the default is the URL of the function's process.
        """
        texts = [self._cluster.kubectl("kustomize", folder).stdout for folder in directories]
        bodies = [body for text in texts for body in yaml.load_all(text, Loader=YAML_LOADER)]
        # The overlay's admission webhook is left out: `localcluster.admission` runs it as a local process.
        bodies = [body for body in bodies if not _belongs_to_admission(body)]
        return [self._functions.resolve_trigger_subscriber(body, get_url or self.get_function_url) for body in bodies]


def _belongs_to_admission(body: dict[str, Any]) -> bool:
    return bool((body["metadata"].get("labels") or {}).get("app.kubernetes.io/component") == "admission")
