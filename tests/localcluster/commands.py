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
from localcluster.up.restarter import ProcessRecord

ROOT = Path(__file__).parents[2]


def build_command(directory: Path, subcommand: str, *options: str) -> list[str]:
    """Return the command line of the Makefile for this subcommand and state directory."""
    module = "localcluster" if subcommand == "up" else "localcluster.up"
    return [sys.executable, "-m", module, subcommand, "--directory", str(directory), *options]


def run_command(directory: Path, subcommand: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of `build_command`, and return the completed process."""
    command = build_command(directory, subcommand, *options)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def run_kubectl(directory: Path, *args: str) -> str:
    """Run kubectl on the cluster in this state directory, and return its output."""
    command = [
        str(build.ensure_programs() / "kubectl"),
        f"--kubeconfig={directory / state_directory.KUBECONFIG_FILE}",
        *args,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def get_process_record(directory: Path, name: str) -> ProcessRecord:
    """Return the supervisor's latest record of the process with this name."""
    return next(record for record in state_directory.read_records(directory) if record.name == name)


def list_running_process_groups(groups: list[int]) -> list[int]:
    """Return those of the process groups in which a process still runs."""
    living_groups = []
    for group in groups:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            continue
        living_groups.append(group)
    return living_groups


def wait_until(predicate: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until `predicate` returns true, and return its last result.

    For example, an exited process exists until its parent reaps it, which may take a moment.
    """
    deadline = time.monotonic() + seconds
    while not predicate() and time.monotonic() < deadline:
        time.sleep(0.02)
    return predicate()
