"""The functions as processes, each alone with a token of its own ServiceAccount, as in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from functions.app import FUNCTIONS
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.functionserver import Wiring, function_server
from localcluster.knative.kubelet import kubeconfig
from localcluster.processes import Server, await_ready, free_port
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK
from localcluster.wings.choice import DEFAULT, KNOWN, Wings

SECONDS = 60


def served(wings: Wings) -> tuple[str, ...]:
    """Give the functions of these wings, and what is nobody's."""
    out = [f"functions.{wing.replace('-', '_')}." for wing in KNOWN if wing not in wings]
    return tuple(name for name, each in FUNCTIONS.items() if not each.step.__module__.startswith(tuple(out)))


SERVED = served(DEFAULT)
"""Those that the overlays install."""
IDENTITY = "functions.token"
"""The file of the token that the SinkBinding `functions` has, where Knative asks who sends."""


class FunctionProcesses:
    """Knows the address of each function, and starts and ends its process.

    In: a cluster, a folder for logs, where events are sent, the journal's file, and the functions' names. The accounts
    have to be there when a function is first started; `asking`, if set by then, is what it asks in the place of the API
    server.
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
        """Give the address of a function."""
        return f"http://{LOOPBACK}:{self._ports[name]}/"

    def launch(self, *names: str) -> None:
        """Start these functions, all if none is named, and do not wait for them."""
        for name in names or self._ports:
            if name not in self.servers:
                self.servers[name] = self._server(name)
            self.servers[name].start()

    def start(self, *names: str) -> None:
        """Start these functions, all if none is named; return when they answer and reach the API server."""
        self.launch(*names)
        for name in names or self._ports:
            await_ready(name, partial(is_ready, self.url(name)), [self.servers[name]], SECONDS)

    def kill(self, *names: str) -> None:
        """End these functions as a crash would, all if none is named."""
        for name in names or self.servers:
            self.servers[name].kill()

    def addressed(self, item: dict[str, Any], url_of: Callable[[str], str]) -> dict[str, Any]:
        """Give a Trigger with addresses in the place of Services, other objects as they are.

        In: where each function is called; dead letters go to the processes themselves whatever that is.
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
