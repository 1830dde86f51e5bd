"""Tells whether this machine can run real nodes; before there is a virtual environment, too: standard library only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from localcluster.trouble import LocalClusterError

UNABLE = 3
"""Exit status on a machine that cannot run real nodes; that of an error is 1."""
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""Without these no kubelet starts."""
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
"""What → how it is tried, in namespaces that are gone with the trial."""
TRIED = ("unshare", "--net", "--mount", "--pid", "--fork", "--ipc", "--uts", "sh", "-e", "-c")
PLACE = "a machine where root may make namespaces and control groups: a virtual machine, or a privileged container"


def check() -> None:
    """Raise `LocalClusterError`, one line, where real nodes cannot run here; packages are looked at elsewhere.

    What a missing package's program would try is left out: look again when it is installed.
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
    """Tell whether a trial's program is installed: one that is not yet, on a fresh machine, says nothing of it."""
    return shutil.which(trial.split()[0]) is not None


def _controllers() -> set[str]:
    """Give which controllers there are, in trees that may be written to."""
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
