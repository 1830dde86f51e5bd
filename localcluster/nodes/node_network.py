"""The network of a cluster's real nodes: 10.N.0.0/16, with an N that no other cluster on this host uses.

A switch in its own network namespace connects the nodes, and one network device connects the host to the switch. So the
host's packet filters do not affect the traffic between nodes, and the nodes need no packet filters on the host.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.nodes.sandbox import Sandbox

SECOND_OCTETS = range(200, 255)
MAX_NODES = 16
DNS_ADDRESS = "10.0.0.10"
"""The address of cluster DNS: the tenth address of `servers.SERVICE_CIDR`, by convention."""
# The API server listens on 127.0.0.1, and nodes reach it through the switch. So both ends of the link must route
# packets for loopback addresses. The host enables this only for its end of the link. The loopback device of the
# switch's namespace stays down, so that 127.0.0.1 is not a local address there.
OUTSIDE_SCRIPT = """
ip link delete {device} 2> /dev/null || true
ip link add {device} type veth peer name uplink netns $PID
ip address add {network.host_address}/30 dev {device}
ip link set {device} up
echo 1 > /proc/sys/net/ipv4/conf/{device}/route_localnet
ip route replace {network.cidr} via {network.uplink_address} dev {device}
"""
INSIDE_SCRIPT = """
mount --make-rprivate /
mount -t proc proc /proc
ip address add {network.uplink_address}/30 dev uplink
ip link set uplink up
ip link add nodes type bridge
ip address add {network.switch_address}/24 dev nodes
ip link set nodes up
ip route add default via {network.host_address}
ip route add 127.0.0.1/32 via {network.host_address}
echo 1 > /proc/sys/net/ipv4/ip_forward
for device in all default uplink nodes; do
    echo 1 > /proc/sys/net/ipv4/conf/$device/route_localnet
    echo 0 > /proc/sys/net/ipv4/conf/$device/rp_filter
done
iptables -t nat -A PREROUTING -d {network.switch_address} -p tcp --dport {port} \\
    -j DNAT --to-destination 127.0.0.1:{port}
"""


@dataclass(frozen=True)
class NodeNetwork:
    """The addresses of one cluster's network.

    Attributes:
        second_octet: The second octet of all addresses.
        reservation: A socket that reserves the network on this host until the socket is closed.
    """

    second_octet: int
    reservation: socket.socket | None = field(default=None, compare=False, repr=False)

    def release(self) -> None:
        """Release the network for other clusters."""
        if self.reservation:
            self.reservation.close()

    @property
    def cidr(self) -> str:
        """Return the CIDR that contains all nodes and pods."""
        return f"10.{self.second_octet}.0.0/16"

    @property
    def host_address(self) -> str:
        """Return the host's address on its link to the switch."""
        return f"10.{self.second_octet}.0.1"

    @property
    def uplink_address(self) -> str:
        """Return the switch's address on its link to the host."""
        return f"10.{self.second_octet}.0.2"

    @property
    def switch_address(self) -> str:
        """Return the nodes' default gateway: the switch, which also forwards the API server's port."""
        return f"10.{self.second_octet}.1.1"

    def get_node_address(self, number: int) -> str:
        """Return the address of the node with this number; numbers start at 1."""
        return f"10.{self.second_octet}.1.{10 + number}"

    def get_pod_cidr(self, number: int) -> str:
        """Return the pod CIDR of the node with this number."""
        return f"10.{self.second_octet}.{100 + number}.0/24"


def reserve_network() -> NodeNetwork:
    """Return a network to which this host has no route, and reserve it, so that no other cluster uses it."""
    routes = _list_routes()
    for number in SECOND_OCTETS:
        network = ipaddress.ip_network(f"10.{number}.0.0/16")
        reservation = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            reservation.bind(f"\0nodemaintenance-network-{number}")
            if not any(network.overlaps(route) for route in routes):
                return NodeNetwork(number, reservation)
        reservation.close()
    raise LocalClusterError(
        "no free network from 10.200.0.0/16 to 10.254.0.0/16 for the real nodes: remove one of the routes in `ip route`"
    )


def _list_routes() -> list[ipaddress.IPv4Network]:
    """Return the networks in the host's routing table, except for the default route."""
    listed = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True).stdout
    destinations = [route["dst"] for route in json.loads(listed or "[]")]
    return [ipaddress.IPv4Network(destination) for destination in destinations if destination != "default"]


def build_switch(directory: Path, network: NodeNetwork, port: int) -> Sandbox:
    """Build the switch's sandbox, not started yet; `port` is the API server's port on this host."""
    values = {"network": network, "device": get_device_name(directory), "port": port}
    return Sandbox("switch", directory, OUTSIDE_SCRIPT.format(**values), INSIDE_SCRIPT.format(**values))


def get_device_name(directory: Path) -> str:
    """Return the name of the host's network device to the switch; the kernel allows 15 characters."""
    return f"nm{hashlib.sha256(str(directory).encode()).hexdigest()[:10]}"
