"""Checks whether this host can run real nodes.

The module may run before the virtual environment exists, so it must not import third-party packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from localcluster.errors import LocalClusterError

EXIT_UNSUPPORTED = 3
"""Exit status on a host that cannot run real nodes; for any other error, the exit status is 1."""
REQUIRED_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""The cgroup controllers that a kubelet requires."""
MOUNTS_FILE, CGROUP2_CONTROLLERS_FILE = Path("/proc/self/mounts"), Path("/sys/fs/cgroup/cgroup.controllers")
PROBES = {
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
"""For each requirement, a shell script that tests it, in namespaces that the kernel removes with the script."""
PROBE_COMMAND = ("unshare", "--net", "--mount", "--pid", "--fork", "--ipc", "--uts", "sh", "-e", "-c")
SUPPORTED_HOSTS = (
    "a host where root may create namespaces and control groups, such as a virtual machine or a privileged container"
)


def check_host() -> None:
    """Raise `LocalClusterError` with a one-line message if this host cannot run real nodes.

    This function does not check the packages, and skips a test whose program is not installed. So call it again after
    the packages are installed.
    """
    if missing := list(_list_missing_requirements()):
        raise LocalClusterError(
            f"REAL needs {', '.join(missing)}, which this host lacks: omit REAL, or use {SUPPORTED_HOSTS}"
        )


def _list_missing_requirements() -> Iterator[str]:
    if sys.platform != "linux":
        yield "Linux"
        return
    if os.geteuid():
        yield "root (sudo make up REAL=2)"
        return
    if missing := [name for name in REQUIRED_CONTROLLERS if name not in _list_controllers()]:
        yield f"the cgroup controllers {', '.join(missing)}, mounted read-write"
    if _does_probe_fail("true"):
        yield "namespaces (`unshare`)"
        return
    yield from (name for name, probe in PROBES.items() if _is_program_installed(probe) and _does_probe_fail(probe))


def _is_program_installed(probe: str) -> bool:
    """Return whether the probe's first program is installed; without it, the probe's failure proves nothing."""
    return shutil.which(probe.split()[0]) is not None


def _list_controllers() -> set[str]:
    """Return the cgroup controllers of writable hierarchies."""
    rows = [line.split() for line in MOUNTS_FILE.read_text().splitlines()]
    options = [row[3].split(",") for row in rows if row[2] == "cgroup"]
    v1_controllers = {option for mount_options in options if "rw" in mount_options for option in mount_options}
    v2_controllers = (
        CGROUP2_CONTROLLERS_FILE.read_text().split()
        if CGROUP2_CONTROLLERS_FILE.exists() and os.access(CGROUP2_CONTROLLERS_FILE.parent, os.W_OK)
        else []
    )
    return v1_controllers | set(v2_controllers)


def _does_probe_fail(probe: str) -> bool:
    return subprocess.run([*PROBE_COMMAND, probe], capture_output=True, check=False).returncode != 0


if __name__ == "__main__":
    try:
        check_host()
    except LocalClusterError as error:
        print(error, file=sys.stderr)
        raise SystemExit(EXIT_UNSUPPORTED) from None
