"""Checks whether this host can run real nodes.

It may run before the virtual environment exists, so it must not import third-party packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from localcluster.errors import LocalClusterError

UNABLE = 3
"""Exit status on a host that cannot run real nodes; that of an error is 1."""
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""A kubelet does not start without these."""
VERSION_1, VERSION_2 = Path("/proc/self/mounts"), Path("/sys/fs/cgroup/cgroup.controllers")
TRIALS = {
    "network devices (`ip link add`)": """
        ip link add one type veth peer name two
        ip link add three type bridge
        """,
    "packet filters (`iptables -t nat`)": """
        iptables -t nat -A PREROUTING -p tcp --dport 1 -j DNAT --to-destination 127.0.0.1:2
        """,
    "overlay mounts": """
        mount -t tmpfs tmpfs /mnt
        mkdir /mnt/upper /mnt/work
        mount -t overlay -o lowerdir=/var,upperdir=/mnt/upper,workdir=/mnt/work overlay /var
        """,
}
"""Requirement to shell script that tests it, in namespaces that end with the test."""
TRIED = ("unshare", "--net", "--mount", "--pid", "--fork", "--ipc", "--uts", "sh", "-e", "-c")
PLACE = "a machine where root may make namespaces and control groups: a virtual machine, or a privileged container"


def check() -> None:
    """Raise `LocalClusterError` with one line if this host cannot run real nodes; packages are checked elsewhere.

    The check skips a test whose program is not installed. Run it again after installing the packages.
    """
    if lacks := list(_lacks()):
        raise LocalClusterError(f"REAL needs {', '.join(lacks)}, not to be had here: leave it out, or take {PLACE}")


def _lacks() -> Iterator[str]:
    if sys.platform != "linux":
        yield "Linux"
        return
    if os.geteuid():
        yield "root (sudo make up REAL=2)"
        return
    if missing := [name for name in CONTROLLERS if name not in _controllers()]:
        yield f"the cgroup controllers {', '.join(missing)}, mounted to be written to"
    if _fails("true"):
        yield "namespaces (`unshare`)"
        return
    yield from (what for what, trial in TRIALS.items() if _is_there(trial) and _fails(trial))


def _is_there(trial: str) -> bool:
    """Return whether a test's program is installed; on a fresh host a missing program proves nothing."""
    return shutil.which(trial.split()[0]) is not None


def _controllers() -> set[str]:
    """Return the cgroup controllers in writable trees."""
    rows = [line.split() for line in VERSION_1.read_text().splitlines()]
    options = [row[3].split(",") for row in rows if row[2] == "cgroup"]
    first = {word for words in options if "rw" in words for word in words}
    second = VERSION_2.read_text().split() if VERSION_2.exists() and os.access(VERSION_2.parent, os.W_OK) else []
    return first | set(second)


def _fails(trial: str) -> bool:
    return subprocess.run([*TRIED, trial], capture_output=True, check=False).returncode != 0


if __name__ == "__main__":
    try:
        check()
    except LocalClusterError as error:
        print(error, file=sys.stderr)
        raise SystemExit(UNABLE) from None
