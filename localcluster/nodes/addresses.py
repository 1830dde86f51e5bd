"""The network of the real nodes of one cluster: 10.N.0.0/16, where N is nobody else's on this machine.

Nodes have a switch between them in a network namespace of its own, which this machine reaches by one device: no packet
filter of this machine stands between two nodes, and none of ours is added to it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import subprocess
from dataclasses import dataclass, field

from localcluster.trouble import LocalClusterError

CANDIDATES = range(200, 255)
MOST_NODES = 16
DNS = "10.0.0.10"
"""In `servers.SERVICE_CIDR`, by custom the tenth."""


@dataclass(frozen=True)
class Addresses:
    """Who has which address.

    Attributes:
        number: the second part of all of them.
        claim: what keeps it from others as long as it is open.
    """

    number: int
    claim: socket.socket | None = field(default=None, compare=False, repr=False)

    def release(self) -> None:
        """Leave it to others."""
        if self.claim:
            self.claim.close()

    @property
    def all(self) -> str:
        """The network of them all."""
        return f"10.{self.number}.0.0/16"

    @property
    def machine(self) -> str:
        """This machine, as the switch reaches it."""
        return f"10.{self.number}.0.1"

    @property
    def door(self) -> str:
        """The switch, as this machine reaches it."""
        return f"10.{self.number}.0.2"

    @property
    def switch(self) -> str:
        """The switch, as nodes reach it: their way out, and where they find the API server."""
        return f"10.{self.number}.1.1"

    def node(self, number: int) -> str:
        """The node of that number, from 1."""
        return f"10.{self.number}.1.{10 + number}"

    def pods(self, number: int) -> str:
        """The network of that node's pods."""
        return f"10.{self.number}.{100 + number}.0/24"


def choose() -> Addresses:
    """Give a network that this machine has no way to yet, and that no other cluster has claimed."""
    taken = _routes()
    for number in CANDIDATES:
        network = ipaddress.ip_network(f"10.{number}.0.0/16")
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            claim.bind(f"\0nodemaintenance-network-{number}")
            if not any(network.overlaps(route) for route in taken):
                return Addresses(number, claim)
        claim.close()
    raise LocalClusterError("no network of 10.200.0.0/16 to 10.254.0.0/16 is free for real nodes; see `ip route`")


def _routes() -> list[ipaddress.IPv4Network]:
    """Give the networks that this machine knows a way to, but for the whole world."""
    listed = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True).stdout
    found = [route["dst"] for route in json.loads(listed or "[]")]
    return [ipaddress.IPv4Network(name) for name in found if name != "default"]
