"""buildah without a daemon, in a folder: bases, images, and what runs in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from localcluster.build import cache
from localcluster.processes import Server
from tests.sources import ROOT

RELEASE, MIRROR = "bookworm", "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv,ca-certificates"
NAME, VERSION = "localhost/nodemaintenance", "9.9.9"
OF_THIS_MACHINE = ("/etc/ssl/certs", "/etc/pip.conf")
"""Whom it trusts and where pip looks: a build's own network asks the same."""
STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""


@dataclass(frozen=True)
class Image:
    """One that is built, and the list of what is in it."""

    name: str
    parts: Path
    engine: Engine

    @cached_property
    def told(self) -> dict[str, Any]:
        """What the image says of itself, in OCI's words."""
        found: dict[str, Any] = json.loads(self.engine.buildah("inspect", "--type", "image", self.name))["OCIv1"]
        return found

    @property
    def size(self) -> int:
        """The bytes of what its layers add to the base."""
        return sum(file.lstat().st_size for room in ("venv", "app") for file in (self.files / room).rglob("*"))

    @cached_property
    def files(self) -> Path:
        """The folder with all its files."""
        return Path(self.engine.buildah("mount", self.container).strip())

    @cached_property
    def container(self) -> str:
        """A container of it."""
        return self.engine.buildah("from", "--pull-never", self.name).strip()

    def server(self, name: str, log: Path, environment: Mapping[str, str], mounted: Path) -> Server:
        """What the image runs, as its own user, on this machine's network; `mounted` is there to be read."""
        told = [f"--env={key}={value}" for key, value in environment.items()]
        run = [
            "buildah",
            "run",
            f"--volume={mounted}:{mounted}:ro",
            *told,
            self.container,
            "--",
            *self.told["config"]["Cmd"],
        ]
        return Server(name, run, log, self.engine.environment)


class Engine:
    """buildah, whose images are in a folder; root and overlay mounts are enough, no daemon is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
        self.environment = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
        self.base = self._base()

    def close(self) -> None:
        """Remove containers, mounts and images."""
        self.buildah("rm", "--all")
        shutil.rmtree(self.folder, ignore_errors=True)

    def buildah(self, *arguments: str | Path) -> str:
        """Run it, and give what it prints. Raises `CalledProcessError`."""
        return run(["buildah", *map(str, arguments)], self.environment)

    def make_image(self, *flags: str) -> Image:
        """Build it by `make image`."""
        mounts = [f"--volume {place}:{place}:ro" for place in OF_THIS_MACHINE if Path(place).exists()]
        given = [f"IMAGE={NAME}", f"VERSION={VERSION}", f"BASE={self.base}"]
        run(
            ["make", "image", *given, f"FLAGS=--network host --pull-never {' '.join([*mounts, *flags])}"],
            self.environment,
        )
        return Image(f"{NAME}:v{VERSION}", ROOT / "build" / "sbom.json", self)

    def _base(self) -> str:
        """A Debian with Python, which is fetched once."""
        name, archive = f"localhost/python:{RELEASE}", cache() / f"base-{RELEASE}.tar"
        if not archive.exists():
            system = self.folder / "debian"
            run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(system), MIRROR], {})
            part = archive.with_suffix(".part")
            run(["tar", "--create", "--file", str(part), "--directory", str(system), "."], {})
            part.rename(archive)
            shutil.rmtree(system)
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", container, archive, "/")
        self.buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        self.buildah("commit", "--rm", container, name)
        return name


def run(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a program in the project's folder, and give what it prints; what it says else is in the error."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout
