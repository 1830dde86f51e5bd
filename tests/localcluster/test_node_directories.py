"""Tests for the check of the directories in which real nodes store their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from localcluster.nodes.real_nodes import check_node_directory


@pytest.mark.parametrize(
    "directory", ["/run/user/0/nodes", "/var/my/nodes", "/home/me/a,b/nodes", "/home/me/a:b/nodes"]
)
def test_unsuitable_directory_is_rejected(directory: str) -> None:
    """Check that a directory in which nodes cannot run is rejected with one line before anything is mounted."""
    with pytest.raises(LocalClusterError, match=rf"^directory {directory} .*: use another directory$"):
        check_node_directory(Path(directory))


def test_directory_with_space_is_accepted() -> None:
    check_node_directory(Path("/home/me/my clone/nodes"))
