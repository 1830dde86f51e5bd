"""What plays kubelet where functions are Deployments."""

from __future__ import annotations

import json

from localcluster.functionserver import SERVE, THRIFT
from localcluster.servers import ROOT


def test_it_runs_the_command_of_the_image() -> None:
    """A container that names no command runs what the Dockerfile says."""
    commands = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("CMD ")]

    assert [json.loads(line.removeprefix("CMD ")) for line in commands] == [list(SERVE)]


def test_it_has_the_environment_of_the_image() -> None:
    """What is measured here is measured with the memory allocator that is shipped."""
    environment = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("ENV PATH"))

    assert {f"{name}={value}" for name, value in THRIFT.items()} <= set(environment.split())
