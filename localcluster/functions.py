"""Each function as a process of its own, with a token of its own ServiceAccount, as in a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from functions.app import FUNCTIONS
from localcluster import access
from localcluster.api import Api
from localcluster.cluster import LocalCluster
from localcluster.knative.kubelet import kubeconfig
from localcluster.processes import Server, await_ready, free_port
from localcluster.product import DIRECT, READY, ROOT
from localcluster.servers import LOOPBACK

SECONDS = 60


class FunctionProcesses:
    """Knows the address of each function, and how its process is started.

    In: a cluster with the manifests installed, a folder for logs, where events are sent, and the journal's file.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, sink: str, journal: Path) -> None:
        self._cluster, self._directory = cluster, directory
        self._ports = {name: free_port() for name in FUNCTIONS}
        self._environment = {**DIRECT, "K_SINK": sink, "JOURNAL": str(journal)}

    def url(self, name: str) -> str:
        """Give the address of a function."""
        return f"http://{LOOPBACK}:{self._ports[name]}/"

    def server(self, name: str) -> Server:
        """Give the process of one function, not started yet."""
        config = ROOT / "functions" / "gunicorn.conf.py"
        address = f"{LOOPBACK}:{self._ports[name]}"
        app = ("functions.app:create_app()", "-c", config, "--no-control-socket", "--bind", address)
        identity = kubeconfig(self._cluster, access.NAMESPACE, name)
        environment = {**self._environment, "FUNCTION": name, "KUBECONFIG": str(identity)}
        command: list[str | Path] = [sys.executable, "-m", "gunicorn", *app]
        return Server(name, command, self._directory / f"{name}.log", environment, ROOT)

    def await_ready(self, server: Server) -> None:
        """Return when a started function answers and reaches the API server."""
        api = Api(self.url(server.name).rstrip("/"))
        await_ready(server.name, lambda: api.answers(READY), [server], SECONDS)

    def addressed(self, item: dict[str, Any]) -> dict[str, Any]:
        """Give a Trigger with the addresses of these processes in the place of Services; other objects as they are."""
        if item["kind"] == "Trigger":
            spec = item["spec"]
            spec["subscriber"] = {"uri": self.url(spec["subscriber"]["ref"]["name"])}
            dead = (spec.get("delivery") or {}).get("deadLetterSink")
            if dead:
                spec["delivery"]["deadLetterSink"] = {"uri": self.url(dead["ref"]["name"])}
        return item
