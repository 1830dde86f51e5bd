"""The web console as a process beside the product, for the administrator of the local cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.readiness import is_ready
from localcluster.servers import DIRECT, LOOPBACK, ROOT

SECONDS = 30


class Console(Startable):
    """`kubectl maintenance console` on a port of its own; by default everybody on this machine acts as administrator.

    In: a cluster with the product on it, and a folder for the log; below which URL functions answer by their names, ""
    where their Triggers say where they are; where the broker is; under which user it runs; further options.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        *options: str | Path,
        functions: str = "",
        broker: str = "",
        user: str = access.ADMIN,
        address: str = LOOPBACK,
    ) -> None:
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        words: list[str | Path] = [sys.executable, "-m", "console.cli", "console", "--listen", f"{address}:{port}"]
        variables = {"KUBECONFIG": str(cluster.kubeconfig_for(user)), "FUNCTIONS": functions, "BROKER": broker}
        self.server = Server("console", [*words, *options], directory / "console.log", {**DIRECT, **variables}, ROOT)

    def _bring_up(self) -> None:
        """Start it; return when it knows what is on the cluster."""
        self.server.start()
        await_ready("the console", lambda: is_ready(self.url), [self.server], SECONDS)

    def stop(self) -> None:
        """End it; there is nothing that it could lose."""
        self.server.kill()
