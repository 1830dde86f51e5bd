"""Helpers that run `make up`, `make down` and `make status`, and read the state of the cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from localcluster.programs import build
from localcluster.up import state_directory
from localcluster.up.restarter import Record

ROOT = Path(__file__).parents[2]


def command(directory: Path, verb: str, *options: str) -> list[str]:
    """Return the command line that the Makefile uses, for another state directory."""
    module = "localcluster" if verb == "up" else "localcluster.up"
    return [sys.executable, "-m", module, verb, "--directory", str(directory), *options]


def run(directory: Path, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run such a command and return its result."""
    words = command(directory, verb, *options)
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def kubectl(directory: Path, *words: str) -> str:
    """Run kubectl on the directory's cluster and return its output."""
    line = [str(build.servers() / "kubectl"), f"--kubeconfig={directory / state_directory.KUBECONFIG}", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def record_of(directory: Path, name: str) -> Record:
    """Return the supervisor's latest record of one of its processes."""
    return next(record for record in state_directory.records(directory) if record.name == name)


def living(groups: list[int]) -> list[int]:
    """Return which of these process groups still have a process."""
    alive = []
    for group in groups:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            continue
        alive.append(group)
    return alive


def soon(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until `holds` returns true, and return its last result.

    An exited process exists until its parent reaps it, which may take a moment.
    """
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()
