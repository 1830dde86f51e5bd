"""Command line `python -m localcluster.plugin DIRECTORY [URL]`: writes the wheel, and with URL the files for krew.

DIRECTORY is the directory to write to. URL is the directory from which users will download the archives.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from localcluster.errors import LocalClusterError
from localcluster.plugin.archives import PROGRAM, write_archive
from localcluster.plugin.krew_manifest import write_manifest
from localcluster.plugin.libraries import PLATFORMS, PYTHON_VERSIONS, Platform, download_libraries
from localcluster.plugin.requirements import read_wheel_metadata
from localcluster.plugin.wheel import build_wheel


def build(directory: Path, url: str = "") -> None:
    """Build the wheel, and if `url` is given, the archives and the manifest for krew. Raises `LocalClusterError`."""
    wheel = build_wheel(directory)
    print(wheel)
    if not url:
        return
    version = read_wheel_metadata(wheel)["Version"]
    archives = {platform: _build_archive(wheel, version, platform, directory) for platform in PLATFORMS}
    print(write_manifest(version, url, archives, directory))


def _build_archive(wheel: Path, version: str, platform: Platform, directory: Path) -> Path:
    archive = directory / f"{PROGRAM}-{version}-{platform.os}-{platform.architecture}.tar.gz"
    with TemporaryDirectory() as libraries:
        for python in PYTHON_VERSIONS:
            download_libraries(wheel, platform, python, Path(libraries))
        write_archive(wheel, Path(libraries), archive)
    print(archive, flush=True)
    return archive


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]), *sys.argv[2:3])
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
