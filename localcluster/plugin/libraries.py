"""Downloads the libraries of `kubectl maintenance` for one platform and all supported versions of Python.

The file name of a compiled module contains the version of Python, so one directory can hold the modules for all
versions.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from localcluster.errors import LocalClusterError
from localcluster.plugin.requirements import find_distributions, list_requirements, read_wheel_metadata, select_pins

PYTHON_VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
EXTRAS = ("", "journal", "console")
"""The wheel's extras whose libraries the archives contain, because krew cannot add them later; "" means no extra."""
UNUSED_DISTRIBUTIONS = {"pydantic", "pydantic-core"}
"""Dependencies of `kubernetes` for its typed client, which `kubectl maintenance` does not import."""


@dataclass(frozen=True)
class Platform:
    """A platform: its names in krew and in Python's environment markers, and the tags of wheels that run on it."""

    os: str
    architecture: str
    system: str
    machine: str
    tags: tuple[str, ...]

    def build_environment(self, python: str) -> dict[str, str]:
        """Return the values of Python's environment markers on this platform."""
        return {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": self.os,
            "platform_system": self.system,
            "platform_machine": self.machine,
        }


PLATFORMS = (
    Platform("linux", "amd64", "Linux", "x86_64", ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64")),
    Platform("linux", "arm64", "Linux", "aarch64", ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64")),
    Platform("darwin", "amd64", "Darwin", "x86_64", ("macosx_11_0_x86_64",)),
    Platform("darwin", "arm64", "Darwin", "arm64", ("macosx_11_0_arm64",)),
)


def download_libraries(wheel: Path, platform: Platform, python: str, directory: Path) -> None:
    """Download the dependencies of the wheel and of `EXTRAS` into `directory`, in the lock file's versions.

    Raises `LocalClusterError` if a library has no wheel for the platform, or if the download fails.
    """
    metadata = read_wheel_metadata(wheel)
    environment = platform.build_environment(python)
    requirements = [requirement for extra in EXTRAS for requirement in list_requirements(metadata, extra)]
    pins = select_pins(find_distributions(requirements, environment) - UNUSED_DISTRIBUTIONS, environment)
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--no-compile"]
    command += ["--implementation", "cp", "--python-version", python]
    for tag in platform.tags:
        command += ["--platform", tag]
    with TemporaryDirectory() as folder:
        target, pin_file = Path(folder, "libraries"), Path(folder, "pins.txt")
        pin_file.write_text("\n".join(pins))
        command += ["--target", str(target), "--requirement", str(pin_file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            name = f"{platform.os}/{platform.architecture} and Python {python}"
            raise LocalClusterError(f"cannot download the libraries for {name}: {done.stderr.strip()}")
        # With --target on an existing directory, pip would replace the modules for another version of Python.
        shutil.copytree(target, directory, dirs_exist_ok=True)
