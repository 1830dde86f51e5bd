"""A folder for a cluster of `make up`, and one that is up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.programs import build
from tests.localcluster.commands import kubectl, run


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Give a folder for a cluster, and end what a failed test left in it."""
    build.servers()
    yield tmp_path / "up"
    run(tmp_path / "up", "down")


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the folder of a cluster of two nodes with the product at work, and some pods on each node."""
    build.servers()
    directory = tmp_path_factory.mktemp("made") / "up"
    try:
        done = run(directory, "up", "--nodes", "2")
        assert done.returncode == 0, done.stdout + done.stderr
        kubectl(directory, "create", "deployment", "web", "--image=any", "--replicas=8")
        kubectl(directory, "rollout", "status", "deployment/web", "--timeout=60s")
        yield directory
    finally:
        run(directory, "down")
