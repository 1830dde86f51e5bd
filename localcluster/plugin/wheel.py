"""Builds the wheel `kubectl-maintenance` from `deploy/kubectl-maintenance`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from localcluster.errors import LocalClusterError
from localcluster.servers import ROOT

PROJECT = "deploy/kubectl-maintenance"
SOURCES = ("console", "eventing", "kube", PROJECT)


def build_wheel(directory: Path) -> Path:
    """Build the wheel into `directory`, and return its path. Raises `LocalClusterError` if the build fails.

    The build uses a copy of the sources. In the original directory, setuptools would create files, and would add files
    of an earlier build to the wheel.
    """
    with TemporaryDirectory() as staging:
        for name in SOURCES:
            shutil.copytree(ROOT / name, Path(staging, name), ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        command += ["--wheel-dir", f"{staging}/wheel", f"{staging}/{PROJECT}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LocalClusterError(f"cannot build the wheel of {PROJECT}: {done.stderr.strip()}")
        (wheel,) = Path(staging, "wheel").glob("*.whl")
        directory.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, directory))
