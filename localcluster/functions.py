"""Each function as a process of its own, with a token of its own ServiceAccount: for brokers that call them one by one."""

from __future__ import annotations

import sys
from pathlib import Path

from functions.app import FUNCTIONS
from localcluster import access
from localcluster.api import Api
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, await_ready, free_port
from localcluster.product import DIRECT, READY, ROOT
from localcluster.servers import LOOPBACK

SECONDS = 60
TOKEN_DURATION = "8760h"  # nobody renews it, so it has to last as long as the cluster


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
        kubeconfig = account_kubeconfig(self._cluster, access.NAMESPACE, name)
        environment = {**self._environment, "FUNCTION": name, "KUBECONFIG": str(kubeconfig)}
        command = [sys.executable, "-m", "gunicorn", *app]
        return Server(name, command, self._directory / f"{name}.log", environment, ROOT)

    def await_ready(self, server: Server) -> None:
        """Return when a started function answers and reaches the API server."""
        api = Api(self.url(server.name).rstrip("/"))
        await_ready(server.name, lambda: api.answers(READY), [server], SECONDS)


def account_kubeconfig(cluster: LocalCluster, namespace: str, account: str) -> Path:
    """Write a kubeconfig with a token of a ServiceAccount, as the TokenRequest API gives it to pods."""
    file = cluster.directory / "users" / f"{namespace}_{account}.token.kubeconfig"
    if not file.exists():
        duration = f"--duration={TOKEN_DURATION}"
        token = cluster.kubectl("create", "token", account, "-n", namespace, duration).stdout.strip()
        access.write_kubeconfig(file, cluster.url, cluster.certificate, f"{namespace}:{account}", token)
    return file
