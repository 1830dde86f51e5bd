"""Tests that the simulated kubelet runs functions with the image's command and environment."""

from __future__ import annotations

import json

from localcluster.function_server import GUNICORN_COMMAND, MALLOC_ENV
from localcluster.servers import ROOT


def test_default_command_equals_command_of_image() -> None:
    """Check that a container without a command runs the CMD of the Dockerfile."""
    commands = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("CMD ")]

    assert [json.loads(line.removeprefix("CMD ")) for line in commands] == [list(GUNICORN_COMMAND)]


def test_memory_allocator_settings_equal_those_of_image() -> None:
    """Check that local functions use the image's memory allocator settings, so that measurements are comparable."""
    environment = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("ENV PATH"))

    assert {f"{name}={value}" for name, value in MALLOC_ENV.items()} <= set(environment.split())
