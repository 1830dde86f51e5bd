"""Creates the control groups of a cluster's nodes, which kubelets require, and removes them after the nodes' exit.

cgroup v1 has one hierarchy per controller, and cgroup v2 has a single hierarchy. A group's name depends only on the
cluster's directory, so `make down` can find the groups even if all processes have exited.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.processes import POLL_SECONDS

MOUNTS_FILE = Path("/proc/self/mounts")
TIMEOUT_SECONDS = 10.0


def get_cgroup_name(directory: Path) -> str:
    """Return the name of the control group that contains all nodes of the cluster in this directory."""
    return f"nodemaintenance-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12]}"


def list_hierarchies() -> list[Path]:
    """Return the mount points of the cgroup hierarchies."""
    rows = [line.split() for line in MOUNTS_FILE.read_text().splitlines()]
    return [Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def create_cgroup(cgroup: str) -> None:
    """Create a control group in each hierarchy, with the CPUs and the memory nodes of its parent group."""
    for tree in list_hierarchies():
        folder = tree
        for name in cgroup.split("/"):
            _enable_controllers(folder)
            folder /= name
            folder.mkdir(exist_ok=True)
            for file in ("cpuset.mems", "cpuset.cpus"):
                if (folder / file).exists() and not (tree / "cgroup.controllers").exists():
                    (folder / file).write_text((folder.parent / file).read_text())


def _enable_controllers(cgroup_dir: Path) -> None:
    """Enable all available controllers for the child groups; only cgroup v2 requires that."""
    with contextlib.suppress(FileNotFoundError):
        if controllers := (cgroup_dir / "cgroup.controllers").read_text().split():
            (cgroup_dir / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def remove_cgroup(cgroup: str) -> None:
    """Remove a control group and its descendants from each hierarchy, once their last process has exited."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    for tree in list_hierarchies():
        while (tree / cgroup).is_dir():
            for folder, _, _ in os.walk(tree / cgroup, topdown=False):
                with contextlib.suppress(OSError):  # A process in the group may not have exited yet.
                    os.rmdir(folder)
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"cannot remove cgroup {tree / cgroup}: end the processes in the cgroup.procs files below it"
                )
            time.sleep(POLL_SECONDS)


def remove_leftover_cgroups_and_data(directory: Path) -> None:
    """Remove control groups and containerd data of the cluster in this directory, after its processes have exited."""
    remove_cgroup(get_cgroup_name(directory))
    for folder in (directory / "nodes").glob("*/containerd"):
        shutil.rmtree(folder, ignore_errors=True)
