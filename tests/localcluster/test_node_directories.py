"""Directories in which real nodes can store their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.nodes.real_nodes import check_place
from localcluster.errors import LocalClusterError


@pytest.mark.parametrize("folder", ["/run/user/0/nodes", "/var/my/nodes", "/home/me/a,b/nodes", "/home/me/a:b/nodes"])
def test_a_folder_in_which_no_node_can_be_is_one_line(folder: str) -> None:
    """Reject a directory that cannot contain nodes with one line, before anything is mounted."""
    with pytest.raises(LocalClusterError, match=rf"^{folder} .*: give another$"):
        check_place(Path(folder))


def test_a_blank_in_a_path_is_no_hindrance() -> None:
    check_place(Path("/home/me/my clone/nodes"))
