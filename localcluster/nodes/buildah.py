"""Builds images with buildah, which stores them in a directory. It needs no daemon, only root and overlay mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.programs.build import get_cache_dir, hold_build_lock
from localcluster.servers import ROOT

DEBIAN_RELEASE, DEBIAN_MIRROR = "bookworm", "http://deb.debian.org/debian"
DEBIAN_PACKAGES = "python3,python3-venv,ca-certificates"
HOST_PATHS = ("/etc/ssl/certs", "/etc/pip.conf")
"""Host files that a build mounts: the trusted CAs, and pip's configuration with the package index."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STORAGE_TEMPLATE = """[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""


class Buildah:
    """A buildah store; the constructor imports the base image, Debian with Python.

    Args:
        directory: An existing directory that only this store uses.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "storage.conf").write_text(STORAGE_TEMPLATE.format(folder=directory))
        self.environment = {"CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
        self.base_image = self._import_base_image()

    def close(self) -> None:
        """Remove all containers, mounts and images."""
        self.run("rm", "--all")
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, *arguments: str | Path) -> str:
        """Run buildah and return its output. Raises `LocalClusterError` if it fails."""
        return run_command(["buildah", *map(str, arguments)], self.environment)

    def build_product_image(self, name: str, version: str, *flags: str) -> str:
        """Build the product's image with `make image`; return the image's name and tag."""
        variables = [f"IMAGE={name}", f"VERSION={version}", f"BASE={self.base_image}"]
        run_command(
            [
                "make",
                "image",
                *variables,
                f"FLAGS=--network host --pull-never {' '.join([*self.list_mount_flags(), *flags])}",
            ],
            self.environment,
        )
        return f"{name}:v{version}"

    @staticmethod
    def list_mount_flags() -> list[str]:
        """Return the flags that mount the host files which a build uses."""
        return [f"--volume={path}:{path}:ro" for path in HOST_PATHS if Path(path).exists()]

    def _import_base_image(self) -> str:
        """Import the base image, Debian with Python, and return its name; its packages are downloaded only once."""
        name, archive = f"localhost/python:{DEBIAN_RELEASE}", get_cache_dir() / f"base-{DEBIAN_RELEASE}.tar"
        if not archive.exists():
            with hold_build_lock("the base image", "base.lock"):
                self._build_base_archive(archive)
        container = self.run("from", "scratch").strip()
        self.run("add", container, archive, "/")
        self.run("config", "--env", f"PATH={SEARCH_PATH}", container)
        self.run("commit", "--rm", container, name)
        return name

    def _build_base_archive(self, archive: Path) -> None:
        """Create the archive of a Debian root file system, unless another process has created it in the meantime."""
        if archive.exists():
            return
        root_dir, partial_archive = self.directory / "debian", archive.with_suffix(".part")
        run_command(
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={DEBIAN_PACKAGES}",
                DEBIAN_RELEASE,
                str(root_dir),
                DEBIAN_MIRROR,
            ],
            {},
        )
        run_command(["tar", "--create", "--file", str(partial_archive), "--directory", str(root_dir), "."], {})
        partial_archive.rename(archive)
        shutil.rmtree(root_dir)


def ensure_archive(archive: Path, build_image: Callable[[Buildah], str]) -> Path:
    """Return an image archive in the format of `docker save`; on first use, build the image with `build_image`."""
    if not archive.exists():
        with hold_build_lock("an image", "image.lock"):
            if not archive.exists():
                _build_archive(archive, build_image)
    return archive


def _build_archive(archive: Path, build_image: Callable[[Buildah], str]) -> None:
    partial_archive = archive.with_suffix(".part")
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-image-", dir=archive.parent) as folder:
        engine = Buildah(Path(folder))
        try:
            name = build_image(engine)
            partial_archive.unlink(missing_ok=True)
            engine.run("push", name, f"docker-archive:{partial_archive}:{name}")
            partial_archive.rename(archive)
        finally:
            engine.close()


def run_command(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a program in the project's root directory and return its output.

    Raises `LocalClusterError`, which quotes the output, if the program fails.
    """
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise LocalClusterError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout
