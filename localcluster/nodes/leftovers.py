"""What outlives the processes of real nodes: control groups, and what takes much room on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from localcluster.nodes import cgroups


def clear(directory: Path) -> None:
    """Take away what is left of the real nodes of the cluster in that folder, whose processes are gone."""
    cgroups.remove(cgroups.name(directory))
    for folder in (directory / "nodes").glob("*/containerd"):
        shutil.rmtree(folder, ignore_errors=True)
