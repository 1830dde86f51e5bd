"""An nginx reverse proxy that replaces cluster DNS: the host name of a request selects the local port."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

from localcluster.processes import Server, reserve_port
from localcluster.programs.packages import find_program
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV

CONFIG_TEMPLATE = Path(__file__).with_name("nginx.conf")


def check_nginx() -> None:
    """Raise `LocalClusterError` if nginx, which replaces cluster DNS, is not installed."""
    find_program("nginx")


class Proxy:
    """The nginx process that forwards requests to the ports of `ingress`, `filter` and `dispatcher`."""

    def __init__(self, directory: Path, ports: Mapping[str, int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = reserve_port()
        self.url = f"http://{LOOPBACK}:{port}"
        file = directory / "nginx.conf"
        file.write_text(Template(CONFIG_TEMPLATE.read_text()).substitute(ports, directory=directory, port=port))
        command: list[str | Path] = [find_program("nginx"), "-p", directory, "-e", "stderr", "-c", file]
        self.server = Server("nginx", command, directory / "nginx.log")

    def build_environment(self) -> dict[str, str]:
        """Return the environment variables that make a process send its requests through this proxy."""
        return {**NO_PROXY_LOCAL_ENV, "HTTP_PROXY": self.url, "http_proxy": self.url}
