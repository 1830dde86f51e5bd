"""buildah in a directory, without a daemon: base images and images. It needs only root and overlay mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from localcluster.programs.build import alone, cache
from localcluster.servers import ROOT
from localcluster.errors import LocalClusterError

RELEASE, MIRROR = "bookworm", "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv,ca-certificates"
OF_THIS_MACHINE = ("/etc/ssl/certs", "/etc/pip.conf")
"""Host files that a build mounts: the trusted CAs and pip's index. The build uses the host's network."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""


class Buildah:
    """A buildah store with a base image, a Debian with Python, which the constructor provides.

    Args:
        folder: An existing directory for this store only.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
        self.environment = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
        self.base = self._base()

    def close(self) -> None:
        """Remove all containers, mounts and images."""
        self.run("rm", "--all")
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *arguments: str | Path) -> str:
        """Run buildah and return its output. Raises `LocalClusterError`."""
        return run(["buildah", *map(str, arguments)], self.environment)

    def make_image(self, name: str, version: str, *flags: str) -> str:
        """Build the product's image with `make image`; return its name with the tag."""
        mounts = [f"--volume {place}:{place}:ro" for place in OF_THIS_MACHINE if Path(place).exists()]
        given = [f"IMAGE={name}", f"VERSION={version}", f"BASE={self.base}"]
        run(
            ["make", "image", *given, f"FLAGS=--network host --pull-never {' '.join([*mounts, *flags])}"],
            self.environment,
        )
        return f"{name}:v{version}"

    def _base(self) -> str:
        """Create the base image, a Debian with Python, and return its name; the packages are downloaded only once."""
        name, archive = f"localhost/python:{RELEASE}", cache() / f"base-{RELEASE}.tar"
        if not archive.exists():
            with alone("the base image", "base.lock"):
                self._fetch(archive)
        container = self.run("from", "scratch").strip()
        self.run("add", container, archive, "/")
        self.run("config", "--env", f"PATH={PATH}", container)
        self.run("commit", "--rm", container, name)
        return name

    def _fetch(self, archive: Path) -> None:
        """Create the archive of a Debian root file system, unless another process has just created it."""
        if archive.exists():
            return
        system, part = self.folder / "debian", archive.with_suffix(".part")
        run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(system), MIRROR], {})
        run(["tar", "--create", "--file", str(part), "--directory", str(system), "."], {})
        part.rename(archive)
        shutil.rmtree(system)


def kept(archive: Path, make: Callable[[Buildah], str]) -> Path:
    """Return an archive in the format of `docker save`; on first use, `make` builds the image and returns its name."""
    if not archive.exists():
        with alone("an image", "image.lock"):
            if not archive.exists():
                _keep(archive, make)
    return archive


def _keep(archive: Path, make: Callable[[Buildah], str]) -> None:
    part = archive.with_suffix(".part")
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-image-", dir=archive.parent) as folder:
        engine = Buildah(Path(folder))
        try:
            name = make(engine)
            part.unlink(missing_ok=True)
            engine.run("push", name, f"docker-archive:{part}:{name}")
            part.rename(archive)
        finally:
            engine.close()


def run(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a program in the project's root directory and return its output; errors quote its output."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise LocalClusterError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout
