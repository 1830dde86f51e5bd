"""Gives each worker of pytest a network of its own, which is its loopback alone: Knative needs fixed ports of it.

As a module it runs pytest with so many workers: `python -m tests.own_network 4 ARGUMENT...`; where the system lets
nobody have such a network, with one. As a script it is a worker's Python: `python tests/own_network.py ARGUMENT...`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shlex
import socket
import struct
import subprocess
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8914, 0x8916, 1  # linux/sockios.h, linux/if.h
ADDRESS = "192.0.2.1"
"""Of a machine that has none but loopback's, which Endpoints may not have. RFC 5737: nobody else's."""
SCRIPT = Path(__file__).resolve()


def flags(count: int) -> list[str]:
    """Give what has pytest use so many workers, each in a network of its own, or one in that of all."""
    python = [sys.executable, str(SCRIPT)]
    tried = subprocess.run([*python, "-c", ""], capture_output=True, text=True, check=False)
    if tried.returncode:
        print(f"one by one, since no worker can have a network of its own: {tried.stderr.strip()}", file=sys.stderr)
        return ["-n", "1"]
    return ["--dist", "load", "--tx", f"{count}*popen//python={shlex.join(python)}"]


def enter() -> None:
    """Leave the network that this process has come with for one of its own; raises OSError where that is refused."""
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:
        if not user:
            raise  # a root that may not has, in a namespace of users, no other user to become, as PostgreSQL has to
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        _map("uid", user)
        Path("/proc/self/setgroups").write_text("deny")  # user_namespaces(7): before groups are mapped
        _map("gid", group)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        fcntl.ioctl(any_socket, SIOCSIFADDR, struct.pack("16s16s", b"lo:own", address))


def _unshare(kinds: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(kinds):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _map(kind: str, number: int) -> None:
    """Be the same inside as outside."""
    Path(f"/proc/self/{kind}_map").write_text(f"{number} {number} 1")


if __name__ == "__main__":
    if __package__:
        arguments = ["-m", "pytest", *flags(int(sys.argv[1])), *sys.argv[2:]]
    else:
        try:
            enter()
        except OSError as error:
            sys.exit(str(error))
        arguments = sys.argv[1:]
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - becoming it is the point
