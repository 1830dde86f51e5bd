"""A reverse proxy in the place of cluster DNS: the host in a request picks the local port. nginx does it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template

from localcluster.processes import Server, free_port
from localcluster.servers import DIRECT, LOOPBACK
from localcluster.trouble import LocalClusterError

CONFIG = Path(__file__).with_name("nginx.conf")


def check() -> None:
    """Say plainly when nginx is not there, before anything is started."""
    if _program() is None:
        raise LocalClusterError(
            "DELIVERY=knative needs nginx, which stands in for cluster DNS: apt-get install -y nginx"
        )


def _program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


class Proxy:
    """nginx for the ports of `ingress`, `filter` and `dispatcher`."""

    def __init__(self, directory: Path, ports: Mapping[str, int]) -> None:
        check()
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        file = directory / "nginx.conf"
        file.write_text(Template(CONFIG.read_text()).substitute(ports, directory=directory, port=port))
        command: list[str | Path] = [str(_program()), "-p", directory, "-e", "stderr", "-c", file]
        self.server = Server("nginx", command, directory / "nginx.log")

    def environment(self) -> dict[str, str]:
        """Give what a program needs in its environment to send its requests through here."""
        return {**DIRECT, "HTTP_PROXY": self.url, "http_proxy": self.url}
