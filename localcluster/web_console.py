"""Runs the web console as a process, with the permissions of the local cluster's administrator."""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, Startable, reserve_port, wait_until_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT


class WebConsole(Startable):
    """The process `kubectl maintenance console`; by default, every user of this host acts as the administrator.

    Args:
        cluster: A cluster on which the product is installed.
        directory: The directory for the log.
        options: Additional options of the command.
        functions_url: The base URL of the functions, with their names as paths; "" if the Triggers contain their URLs.
        broker_url: The broker's URL.
        user: The Kubernetes user as which the console acts.
        address: The address on which the console listens.
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
        """Start the console; return when it has read the cluster's state and serves pages."""
        self.server.start()
        wait_until_ready("the console", lambda: is_ready(self.url), [self.server])

    def stop(self) -> None:
        """Kill the console, which has no state to save."""
        self.server.kill()
