"""Fixtures for state directories of `make up`, with and without a running cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.programs import build
from tests.localcluster.commands import run_command, run_kubectl


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty state directory, and stop the cluster that a failed test may have left there."""
    build.ensure_programs()
    yield tmp_path / "up"
    run_command(tmp_path / "up", "down")


@pytest.fixture(scope="package")
def running_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the state directory of a running cluster with two nodes, the product, and a Deployment of eight pods."""
    build.ensure_programs()
    directory = tmp_path_factory.mktemp("made") / "up"
    try:
        result = run_command(directory, "up", "--nodes", "2")
        assert result.returncode == 0, result.stdout + result.stderr
        run_kubectl(directory, "create", "deployment", "web", "--image=any", "--replicas=8")
        run_kubectl(directory, "rollout", "status", "deployment/web", "--timeout=60s")
        yield directory
    finally:
        run_command(directory, "down")
