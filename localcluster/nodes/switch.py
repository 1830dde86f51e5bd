"""The switch that connects the nodes: a bridge in its own network namespace, with one link to this host."""

from __future__ import annotations

import hashlib
from pathlib import Path

from localcluster.nodes.node_network import NodeNetwork
from localcluster.nodes.sandbox import Sandbox

# The API server listens on 127.0.0.1, and nodes reach it through the switch. So both ends of the link must route
# packets for loopback addresses; the host enables this only for its end of the link. The loopback device of the
# switch's namespace stays down, so that namespace does not own 127.0.0.1.
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


def build_switch(directory: Path, network: NodeNetwork, port: int) -> Sandbox:
    """Return the switch, not started yet; `port` is the API server's port on this host."""
    values = {"network": network, "device": get_device_name(directory), "port": port}
    return Sandbox("switch", directory, OUTSIDE_SCRIPT.format(**values), INSIDE_SCRIPT.format(**values))


def get_device_name(directory: Path) -> str:
    """Return the name of the host's end of the link; the kernel allows 15 characters."""
    return f"nm{hashlib.sha256(str(directory).encode()).hexdigest()[:10]}"
