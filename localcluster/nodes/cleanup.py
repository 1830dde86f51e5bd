"""Removes what the processes of real nodes leave on the host: control groups and large directories."""

from __future__ import annotations

import shutil
from pathlib import Path

from localcluster.nodes import cgroups


def remove_leftovers(directory: Path) -> None:
    """Remove the control groups and containerd data of the cluster in this directory, whose processes have ended."""
    cgroups.remove_cgroup(cgroups.get_cgroup_name(directory))
    for folder in (directory / "nodes").glob("*/containerd"):
        shutil.rmtree(folder, ignore_errors=True)
