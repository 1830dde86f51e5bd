"""Runs each pytest worker in its own network namespace, because Knative needs fixed ports.

The only interface in a namespace is loopback. `python -m tests.network_namespace 4 ARGUMENT...` runs pytest with four
workers, or with one worker if the system does not permit network namespaces. Each worker uses
`python tests/network_namespace.py ARGUMENT...` as its Python interpreter.
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

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # From linux/sched.h.
SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8914, 0x8916, 1  # From linux/sockios.h and linux/if.h.
OWN_ADDRESS = "192.0.2.1"
"""Address for Endpoints, which must not contain loopback addresses; RFC 5737 reserves it for documentation."""
SCRIPT_PATH = Path(__file__).resolve()


def build_pytest_options(worker_count: int) -> list[str]:
    """Return the pytest options for one network namespace per worker or, if not permitted, for only one worker."""
    python = [sys.executable, str(SCRIPT_PATH)]
    result = subprocess.run([*python, "-c", ""], capture_output=True, text=True, check=False)
    if result.returncode:
        print(f"one worker only, without its own network namespace: {result.stderr.strip()}", file=sys.stderr)
        return ["-n", "1"]
    return ["--dist", "load", "--tx", f"{worker_count}*popen//python={shlex.join(python)}"]


def enter_network_namespace() -> None:
    """Move this process into a new network namespace. Raises `OSError` if that is not permitted."""
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:
        if not user:
            raise  # In a user namespace, root could not switch to another user, as PostgreSQL requires.
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        _write_id_map("uid", user)
        Path("/proc/self/setgroups").write_text("deny")  # user_namespaces(7) requires this before groups are mapped.
        _write_id_map("gid", group)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(OWN_ADDRESS))
        fcntl.ioctl(any_socket, SIOCSIFADDR, struct.pack("16s16s", b"lo:own", address))


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"unshare: {os.strerror(error_number)}")


def _write_id_map(kind: str, id_number: int) -> None:
    """Map the id to the same id inside the user namespace."""
    Path(f"/proc/self/{kind}_map").write_text(f"{id_number} {id_number} 1")


if __name__ == "__main__":
    if __package__:
        arguments = ["-m", "pytest", *build_pytest_options(int(sys.argv[1])), *sys.argv[2:]]
    else:
        try:
            enter_network_namespace()
        except OSError as error:
            sys.exit(str(error))
        arguments = sys.argv[1:]
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - replaces this process
