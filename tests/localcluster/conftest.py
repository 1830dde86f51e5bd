"""A state directory for `make up`, and one of a running cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.programs import build
from tests.localcluster.commands import kubectl, run


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Yield a state directory, and stop a cluster that a failed test left running."""
    build.servers()
    yield tmp_path / "up"
    run(tmp_path / "up", "down")


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the state directory of a running cluster with two nodes, the product, and a Deployment of eight pods."""
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
