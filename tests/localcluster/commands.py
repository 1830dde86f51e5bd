"""`make up`, `down` and `status` as tests run them, and what they look at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from localcluster.programs import build
from localcluster.up import folder
from localcluster.up.keeper import Record

ROOT = Path(__file__).parents[2]


def command(directory: Path, verb: str, *options: str) -> list[str]:
    """Give the command line that the Makefile uses, for a folder of our own."""
    module = "localcluster" if verb == "up" else "localcluster.up"
    return [sys.executable, "-m", module, verb, "--directory", str(directory), *options]


def run(directory: Path, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run such a command to its end."""
    words = command(directory, verb, *options)
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def kubectl(directory: Path, *words: str) -> str:
    """Run kubectl on the folder's cluster; gives its output."""
    line = [str(build.servers() / "kubectl"), f"--kubeconfig={directory / folder.KUBECONFIG}", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def record_of(directory: Path, name: str) -> Record:
    """Give what the supervisor wrote down last about one of its processes."""
    return next(record for record in folder.records(directory) if record.name == name)


def living(groups: list[int]) -> list[int]:
    """Give which of these process groups still have a process."""
    alive = []
    for group in groups:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            continue
        alive.append(group)
    return alive


def soon(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until it holds; a process that ended is there until it was reaped, which others do when they come to it."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()
