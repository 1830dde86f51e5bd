"""An nginx reverse proxy that replaces cluster DNS: the host name of a request selects the local port."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

from localcluster.processes import Server, free_port
from localcluster.programs.packages import find
from localcluster.servers import DIRECT, LOOPBACK

CONFIG = Path(__file__).with_name("nginx.conf")


def check() -> None:
    """Raise `LocalClusterError` if nginx, which replaces cluster DNS, is not installed."""
    find("nginx")


class Proxy:
    """The nginx process that forwards to the ports of `ingress`, `filter` and `dispatcher`."""

    def __init__(self, directory: Path, ports: Mapping[str, int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        file = directory / "nginx.conf"
        file.write_text(Template(CONFIG.read_text()).substitute(ports, directory=directory, port=port))
        command: list[str | Path] = [find("nginx"), "-p", directory, "-e", "stderr", "-c", file]
        self.server = Server("nginx", command, directory / "nginx.log")

    def environment(self) -> dict[str, str]:
        """Return the environment variables that route a program's requests through this proxy."""
        return {**DIRECT, "HTTP_PROXY": self.url, "http_proxy": self.url}
