"""The functions as processes, each with a token for its own ServiceAccount, as in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from functions.app import FUNCTIONS
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.components.selection import ALL_COMPONENTS, DEFAULT_COMPONENTS, Components
from localcluster.function_server import FunctionConfig, build_function_server
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK


def list_functions(components: Components) -> tuple[str, ...]:
    """Return the names of the functions that belong to these components or to no component."""
    excluded = [component for component in ALL_COMPONENTS if component not in components]
    prefixes = tuple(f"functions.{component.replace('-', '_')}." for component in excluded)
    return tuple(name for name, function in FUNCTIONS.items() if not function.step.__module__.startswith(prefixes))


DEFAULT_FUNCTIONS = list_functions(DEFAULT_COMPONENTS)
"""The functions that the project's overlays install."""
TOKEN_FILE = "functions.token"  # noqa: S105 - a file name, not a token
"""The file with the token of the SinkBinding `functions`; the token exists if Knative authenticates senders."""


class FunctionProcesses:
    """Assigns an address to each function, and starts and kills the functions' processes.

    The ServiceAccounts must exist before a function is first started.

    Args:
        directory: The directory for logs.
        sink_url: The URL to which the functions send events.
        journal: The journal's file.
        names: The functions' names.

    Attributes:
        servers: The processes by function name.
        api_url: The URL that replaces the API server's; set it before the first start.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        sink_url: str,
        journal: Path,
        names: Sequence[str] = DEFAULT_FUNCTIONS,
    ) -> None:
        self._cluster, self._directory = cluster, directory
        self._ports = {name: reserve_port() for name in names}
        key = access.ensure_event_signing_key(cluster.directory)
        self._config = FunctionConfig(sink_url, str(journal), self.get_url("record"), key, str(directory / TOKEN_FILE))
        self.servers: dict[str, Server] = {}
        self.api_url = ""

    def get_url(self, name: str) -> str:
        """Return the URL of a function."""
        return f"http://{LOOPBACK}:{self._ports[name]}/"

    def launch(self, *names: str) -> None:
        """Start these functions, or all without arguments; return before they are ready."""
        for name in names or self._ports:
            if name not in self.servers:
                self.servers[name] = self._build_server(name)
            self.servers[name].start()

    def start(self, *names: str) -> None:
        """Start these functions, or all without arguments; return when they respond and can reach the API server."""
        self.launch(*names)
        for name in names or self._ports:
            wait_until_ready(name, partial(is_ready, self.get_url(name)), [self.servers[name]])

    def kill(self, *names: str) -> None:
        """Kill these functions to simulate a crash; without arguments, kill all of them."""
        for name in names or self.servers:
            self.servers[name].kill()

    def resolve_trigger_subscriber(self, manifest: dict[str, Any], get_url: Callable[[str], str]) -> dict[str, Any]:
        """Replace the Service references of a Trigger with URLs; return any other object unchanged.

        Args:
            get_url: Returns the URL for a Trigger's subscriber; dead letters always go to the function's own process.
        """
        if manifest["kind"] == "Trigger":
            spec = manifest["spec"]
            spec["subscriber"] = {"uri": get_url(spec["subscriber"]["ref"]["name"])}
            dead_letter_sink = (spec.get("delivery") or {}).get("deadLetterSink")
            if dead_letter_sink:
                spec["delivery"]["deadLetterSink"] = {"uri": self.get_url(dead_letter_sink["ref"]["name"])}
        return manifest

    def _build_server(self, name: str) -> Server:
        identity = write_account_kubeconfig(self._cluster, access.NAMESPACE, name)
        if self.api_url:
            copy = self._directory / f"{name}.kubeconfig"
            identity = access.write_proxied_kubeconfig(self.api_url, identity, self._cluster.url, copy)
        log = self._directory / f"{name}.log"
        return build_function_server(name, self._ports[name], log, identity, self._config, function=name)
