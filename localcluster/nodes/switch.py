"""The switch that connects the nodes: a bridge in its own network namespace, with one link to this host."""

from __future__ import annotations

import hashlib
from pathlib import Path

from localcluster.nodes.node_network import Addresses
from localcluster.nodes.sandbox import Room

# The API server listens on 127.0.0.1, and nodes reach it through the switch. So both ends of the link must route
# packets for loopback addresses; the host enables this only for its end of the link. The loopback device of the
# switch's namespace stays down, so that namespace does not own 127.0.0.1.
OUTSIDE = """
ip link delete {device} 2> /dev/null || true
ip link add {device} type veth peer name machine netns $PID
ip address add {a.machine}/30 dev {device}
ip link set {device} up
echo 1 > /proc/sys/net/ipv4/conf/{device}/route_localnet
ip route replace {a.all} via {a.door} dev {device}
"""
INSIDE = """
mount --make-rprivate /
mount -t proc proc /proc
ip address add {a.door}/30 dev machine
ip link set machine up
ip link add nodes type bridge
ip address add {a.switch}/24 dev nodes
ip link set nodes up
ip route add default via {a.machine}
ip route add 127.0.0.1/32 via {a.machine}
echo 1 > /proc/sys/net/ipv4/ip_forward
for device in all default machine nodes; do
    echo 1 > /proc/sys/net/ipv4/conf/$device/route_localnet
    echo 0 > /proc/sys/net/ipv4/conf/$device/rp_filter
done
iptables -t nat -A PREROUTING -d {a.switch} -p tcp --dport {port} -j DNAT --to-destination 127.0.0.1:{port}
"""


def switch(folder: Path, addresses: Addresses, port: int) -> Room:
    """Return the switch, not started yet; `port` is the API server's port on this host."""
    told = {"a": addresses, "device": device(folder), "port": port}
    return Room("switch", folder, OUTSIDE.format(**told), INSIDE.format(**told))


def device(folder: Path) -> str:
    """Return the name of the host's end of the link; the kernel allows 15 characters."""
    return f"nm{hashlib.sha256(str(folder).encode()).hexdigest()[:10]}"
