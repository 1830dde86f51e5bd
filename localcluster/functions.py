"""The functions as processes: all in one, or each alone with a token of its own ServiceAccount, as in a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from functions.app import FUNCTIONS
from localcluster import access
from localcluster.api import Api
from localcluster.cluster import LocalCluster
from localcluster.knative.kubelet import kubeconfig
from localcluster.processes import Server, await_ready, free_port
from localcluster.servers import DIRECT, LOOPBACK, ROOT

READY = "/health/readiness"
SECONDS = 60


def gunicorn(name: str, port: int, log: Path, environment: Mapping[str, str]) -> Server:
    """Give the process that serves the functions that its environment names, as the image's command does."""
    config = ("-c", ROOT / "functions" / "gunicorn.conf.py", "--bind", f"{LOOPBACK}:{port}")
    command: list[str | Path] = [sys.executable, "-m", "gunicorn", *config, "functions.app:create_app()"]
    return Server(name, command, log, {**DIRECT, **environment}, ROOT)


class FunctionProcesses:
    """Knows the address of each function, and starts and ends its process.

    In: a cluster, a folder for logs, where events are sent, and the journal's file. The accounts have to be there when
    a function is first started.
    """

    def __init__(self, cluster: LocalCluster, directory: Path, sink: str, journal: Path) -> None:
        self._cluster, self._directory = cluster, directory
        self._ports = {name: free_port() for name in FUNCTIONS}
        self._environment = {"K_SINK": sink, "JOURNAL": str(journal), "RECORD": self.url("record")}
        self.servers: dict[str, Server] = {}

    def url(self, name: str) -> str:
        """Give the address of a function."""
        return f"http://{LOOPBACK}:{self._ports[name]}/"

    def launch(self, *names: str) -> None:
        """Start these functions, all if none is named, and do not wait for them."""
        for name in names or FUNCTIONS:
            if name not in self.servers:
                self.servers[name] = self._server(name)
            self.servers[name].start()

    def start(self, *names: str) -> None:
        """Start these functions, all if none is named; return when they answer and reach the API server."""
        self.launch(*names)
        for name in names or FUNCTIONS:
            answers = partial(Api(self.url(name).rstrip("/")).answers, READY)
            await_ready(name, answers, [self.servers[name]], SECONDS)

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
        environment = {**self._environment, "FUNCTION": name, "KUBECONFIG": str(identity)}
        return gunicorn(name, self._ports[name], self._directory / f"{name}.log", environment)
