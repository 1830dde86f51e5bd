"""The control groups of a cluster's nodes: what a kubelet wants to be there, and what outlives its processes.

Groups of version 1, one tree for each controller, and of version 2, a tree for all. The name comes from the cluster's
folder: `make down` finds them where everything else is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from localcluster.processes import POLL_SECONDS
from localcluster.trouble import LocalClusterError

MOUNTS = Path("/proc/self/mounts")
SECONDS = 10.0


def name(directory: Path) -> str:
    """Give the name of the group of all nodes of the cluster in that folder."""
    return f"nodemaintenance-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12]}"


def trees() -> list[Path]:
    """Give where groups are made."""
    rows = [line.split() for line in MOUNTS.read_text().splitlines()]
    return [Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def make(group: str) -> None:
    """Make a group in each tree, with the processors and the memory of the one above it."""
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
    """Have the groups below have the same controllers; of version 2 alone it must be said."""
    with contextlib.suppress(FileNotFoundError):
        if words := (place / "cgroup.controllers").read_text().split():
            (place / "cgroup.subtree_control").write_text(" ".join(f"+{word}" for word in words))


def remove(group: str) -> None:
    """Take away a group and those below it, in each tree, as soon as their last process is gone."""
    deadline = time.monotonic() + SECONDS
    for tree in trees():
        while (tree / group).is_dir():
            for folder, _, _ in os.walk(tree / group, topdown=False):
                with contextlib.suppress(OSError):  # a process is still ending
                    os.rmdir(folder)
            if time.monotonic() > deadline:
                raise LocalClusterError(f"{tree / group} does not go: see the cgroup.procs below it")
            time.sleep(POLL_SECONDS)
