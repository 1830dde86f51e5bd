"""The network of a cluster's real nodes: 10.N.0.0/16, with an N that no other cluster on this host uses.

A switch in its own network namespace connects the nodes, and one network device connects the host to the switch. So the
host's packet filters do not affect the traffic between nodes, and this module adds none to the host.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import subprocess
from dataclasses import dataclass, field

from localcluster.errors import LocalClusterError

CANDIDATES = range(200, 255)
MOST_NODES = 16
DNS = "10.0.0.10"
"""The tenth address of `servers.SERVICE_CIDR`, by convention."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of one cluster's network.

    Attributes:
        number: The second octet of all addresses.
        claim: A socket that reserves the network while it is open.
    """

    number: int
    claim: socket.socket | None = field(default=None, compare=False, repr=False)

    def release(self) -> None:
        """Release the reservation of the network."""
        if self.claim:
            self.claim.close()

    @property
    def all(self) -> str:
        """Return the network of all nodes and pods."""
        return f"10.{self.number}.0.0/16"

    @property
    def machine(self) -> str:
        """Return the host's address on its link to the switch."""
        return f"10.{self.number}.0.1"

    @property
    def door(self) -> str:
        """Return the switch's address on its link to the host."""
        return f"10.{self.number}.0.2"

    @property
    def switch(self) -> str:
        """Return the switch's address for the nodes: their default gateway, which forwards the API server's port."""
        return f"10.{self.number}.1.1"

    def node(self, number: int) -> str:
        """Return the address of the node with this number, from 1."""
        return f"10.{self.number}.1.{10 + number}"

    def pods(self, number: int) -> str:
        """Return the pod network of the node with this number."""
        return f"10.{self.number}.{100 + number}.0/24"


def choose() -> Addresses:
    """Return a network that the host has no route to and no other cluster has reserved."""
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
    """Return the networks in the host's routing table, except for the default route."""
    listed = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True).stdout
    found = [route["dst"] for route in json.loads(listed or "[]")]
    return [ipaddress.IPv4Network(name) for name in found if name != "default"]
