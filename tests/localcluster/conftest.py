"""A folder for a cluster of `make up`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import build
from tests.localcluster.commands import run


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Give a folder for a cluster, and end what a failed test left in it."""
    build.servers()
    yield tmp_path / "up"
    run(tmp_path / "up", "down")
