"""The functions as processes, each with a token of its own ServiceAccount, as in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from functions.app import FUNCTIONS
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.function_server import Wiring, function_server
from localcluster.knative.fake_kubelet import kubeconfig
from localcluster.processes import Server, await_ready, free_port
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK
from localcluster.components.selection import DEFAULT, KNOWN, Wings

SECONDS = 60


def served(wings: Wings) -> tuple[str, ...]:
    """Return the names of the functions that belong to these components or to no component."""
    out = [f"functions.{wing.replace('-', '_')}." for wing in KNOWN if wing not in wings]
    return tuple(name for name, each in FUNCTIONS.items() if not each.step.__module__.startswith(tuple(out)))


SERVED = served(DEFAULT)
"""The functions that the project's overlays install."""
IDENTITY = "functions.token"
"""The token file of the SinkBinding `functions`, which exists if Knative authenticates senders."""


class FunctionProcesses:
    """Assigns an address to each function, and starts and kills the functions' processes.

    The ServiceAccounts must exist before a function is first started.

    Args:
        directory: The directory for logs.
        sink: The URL to which the functions send events.
        journal: The journal's file.
        names: The functions' names.

    Attributes:
        servers: The processes by function name.
        asking: The URL that replaces the API server's; set it before the first start.
    """

    def __init__(
        self, cluster: LocalCluster, directory: Path, sink: str, journal: Path, names: Sequence[str] = SERVED
    ) -> None:
        self._cluster, self._directory = cluster, directory
        self._ports = {name: free_port() for name in names}
        key = access.signing_key(cluster.directory)
        self._wiring = Wiring(sink, str(journal), self.url("record"), key, str(directory / IDENTITY))
        self.servers: dict[str, Server] = {}
        self.asking = ""

    def url(self, name: str) -> str:
        """Return the address of a function."""
        return f"http://{LOOPBACK}:{self._ports[name]}/"

    def launch(self, *names: str) -> None:
        """Start these functions, or all without arguments, without waiting for them."""
        for name in names or self._ports:
            if name not in self.servers:
                self.servers[name] = self._server(name)
            self.servers[name].start()

    def start(self, *names: str) -> None:
        """Start these functions, or all without arguments; return when they respond and reach the API server."""
        self.launch(*names)
        for name in names or self._ports:
            await_ready(name, partial(is_ready, self.url(name)), [self.servers[name]], SECONDS)

    def kill(self, *names: str) -> None:
        """Kill these functions to simulate a crash; without arguments, kill all of them."""
        for name in names or self.servers:
            self.servers[name].kill()

    def addressed(self, item: dict[str, Any], url_of: Callable[[str], str]) -> dict[str, Any]:
        """Replace the Service references of a Trigger with addresses; return any other object unchanged.

        Args:
            url_of: Returns the address at which a function is called; dead letters always go to the function's process.
        """
        if item["kind"] == "Trigger":
            spec = item["spec"]
            spec["subscriber"] = {"uri": url_of(spec["subscriber"]["ref"]["name"])}
            dead = (spec.get("delivery") or {}).get("deadLetterSink")
            if dead:
                spec["delivery"]["deadLetterSink"] = {"uri": self.url(dead["ref"]["name"])}
        return item

    def _server(self, name: str) -> Server:
        identity = kubeconfig(self._cluster, access.NAMESPACE, name)
        if self.asking:
            copy = self._directory / f"{name}.kubeconfig"
            identity = access.through(self.asking, identity, self._cluster.url, copy)
        log = self._directory / f"{name}.log"
        return function_server(name, self._ports[name], log, identity, self._wiring, function=name)
