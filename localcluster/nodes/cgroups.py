"""The control groups of a cluster's nodes: created because a kubelet requires them, and removed after its processes.

With cgroup v1 there is one tree per controller, with v2 a single tree. The group's name depends only on the cluster's
directory, so `make down` finds the groups after everything else has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from localcluster.processes import POLL_SECONDS
from localcluster.errors import LocalClusterError

MOUNTS = Path("/proc/self/mounts")
SECONDS = 10.0


def name(directory: Path) -> str:
    """Return the name of the group of all nodes of the cluster in this directory."""
    return f"nodemaintenance-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12]}"


def trees() -> list[Path]:
    """Return the mount points of the cgroup trees."""
    rows = [line.split() for line in MOUNTS.read_text().splitlines()]
    return [Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def make(group: str) -> None:
    """Create a group in each tree, with the CPUs and memory nodes of its parent."""
    for tree in trees():
        place = tree
        for part in group.split("/"):
            _pass_on(place)
            place /= part
            place.mkdir(exist_ok=True)
            for file in ("cpuset.mems", "cpuset.cpus"):
                if (place / file).exists() and not (tree / "cgroup.controllers").exists():
                    (place / file).write_text((place.parent / file).read_text())


def _pass_on(place: Path) -> None:
    """Enable the same controllers for the child groups, which only cgroup v2 requires."""
    with contextlib.suppress(FileNotFoundError):
        if words := (place / "cgroup.controllers").read_text().split():
            (place / "cgroup.subtree_control").write_text(" ".join(f"+{word}" for word in words))


def remove(group: str) -> None:
    """Remove a group and its descendants from each tree, once their last process has ended."""
    deadline = time.monotonic() + SECONDS
    for tree in trees():
        while (tree / group).is_dir():
            for folder, _, _ in os.walk(tree / group, topdown=False):
                with contextlib.suppress(OSError):  # a process is still ending
                    os.rmdir(folder)
            if time.monotonic() > deadline:
                raise LocalClusterError(f"{tree / group} does not go: see the cgroup.procs below it")
            time.sleep(POLL_SECONDS)
