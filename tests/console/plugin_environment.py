"""Virtual environments with only the wheel `kubectl-maintenance` and the libraries that it requires.

The libraries are links to those of the environment that runs the tests, so that no test needs a package index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from localcluster.plugin.requirements import find_distributions, list_requirements, read_wheel_metadata
from localcluster.programs import build

ISOLATED_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "DATABASE_URL", "JOURNAL", "KUBECONFIG", "FUNCTIONS", "BROKER")
"""Environment variables that an installed command must not inherit from the tests."""


@dataclass(frozen=True)
class PluginEnvironment:
    """A virtual environment in which the wheel is installed, and a working directory outside of the repository."""

    directory: Path
    working_dir: Path
    kubeconfig: Path

    @property
    def programs(self) -> Path:
        """Return the directory of the environment's executables."""
        return self.directory / "bin"

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the environment's executables and kubectl on PATH; return the completed process."""
        inherited = {name: value for name, value in os.environ.items() if name not in ISOLATED_VARIABLES}
        path = f"{self.programs}:{build.ensure_programs()}:{os.environ['PATH']}"
        environment = {**inherited, "PATH": path, "KUBECONFIG": str(self.kubeconfig), **variables}
        return subprocess.run(
            command, cwd=self.working_dir, env=environment, capture_output=True, text=True, check=False, timeout=120
        )


def link_distributions(names: Iterable[str], site_packages: Path) -> None:
    """Link the files of these installed distributions into `site_packages`, but not their executables."""
    for name in names:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}:
            target = site_packages / top
            if not target.exists():
                target.symlink_to(Path(str(installed.locate_file(top))).resolve())


def create_environment(directory: Path, wheel: Path, extras: Sequence[str] = ()) -> None:
    """Create a virtual environment with the wheel, its requirements, and the requirements of these extras."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (site_packages,) = directory.glob("lib/python3*/site-packages")
    metadata = read_wheel_metadata(wheel)
    requirements = [requirement for extra in ("", *extras) for requirement in list_requirements(metadata, extra)]
    link_distributions(find_distributions(requirements), site_packages)
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(directory / "bin" / "python")]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
