"""The web console as a process next to the product, for the administrator of the local cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, Startable, reserve_port, wait_until_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT

TIMEOUT_SECONDS = 30


class WebConsole(Startable):
    """`kubectl maintenance console` on its own port; by default every user of this host acts as the administrator.

    Args:
        cluster: A cluster with the product on it.
        directory: The directory for the log.
        options: Further options of the command.
        functions_url: The base URL of the functions, each below its name; "" if their Triggers have the addresses.
        broker_url: The broker's URL.
        user: The Kubernetes user that the console acts as.
        address: The address to listen on.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        *options: str | Path,
        functions_url: str = "",
        broker_url: str = "",
        user: str = access.ADMIN,
        address: str = LOOPBACK,
    ) -> None:
        port = reserve_port()
        self.url = f"http://{LOOPBACK}:{port}"
        words: list[str | Path] = [sys.executable, "-m", "console.cli", "console", "--listen", f"{address}:{port}"]
        variables = {
            "KUBECONFIG": str(cluster.ensure_kubeconfig(user)),
            "FUNCTIONS": functions_url,
            "BROKER": broker_url,
        }
        self.server = Server(
            "console", [*words, *options], directory / "console.log", {**NO_PROXY_LOCAL_ENV, **variables}, ROOT
        )

    def _start_and_wait(self) -> None:
        """Start the console; return when it has read the cluster's state."""
        self.server.start()
        wait_until_ready("the console", lambda: is_ready(self.url), [self.server], TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Kill the console; it holds no state."""
        self.server.kill()
