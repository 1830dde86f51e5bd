"""What nodes are connected by: a bridge in a namespace of its own, with one way to this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from localcluster.nodes.addresses import Addresses
from localcluster.nodes.rooms import Room

# On 127.0.0.1 listens the API server, and nodes ask for it at the switch; both ends must let such packets pass, which
# is said of our own device alone. The switch keeps its loopback device down, so the address is none of its own.
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
    """Give it, not made yet; in: the port of the API server on this machine."""
    told = {"a": addresses, "device": device(folder), "port": port}
    return Room("switch", folder, OUTSIDE.format(**told), INSIDE.format(**told))


def device(folder: Path) -> str:
    """Give the name of this machine's end; the kernel takes 15 letters."""
    return f"nm{hashlib.sha256(str(folder).encode()).hexdigest()[:10]}"
