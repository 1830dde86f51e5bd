"""Our image, as buildah has built it: what it says of itself, its files, and what runs in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from localcluster.nodes.buildah import Buildah
from localcluster.processes import Server
from tests.sources import ROOT

NAME, VERSION = "localhost/nodemaintenance", "9.9.9"


@dataclass(frozen=True)
class Image:
    """One that is built, and the list of what is in it."""

    name: str
    parts: Path
    engine: Buildah

    @cached_property
    def told(self) -> dict[str, Any]:
        """What the image says of itself, in OCI's words."""
        found: dict[str, Any] = json.loads(self.engine.run("inspect", "--type", "image", self.name))["OCIv1"]
        return found

    @property
    def size(self) -> int:
        """The bytes of what its layers add to the base."""
        return sum(file.lstat().st_size for room in ("venv", "app") for file in (self.files / room).rglob("*"))

    @cached_property
    def files(self) -> Path:
        """The folder with all its files."""
        return Path(self.engine.run("mount", self.container).strip())

    @cached_property
    def container(self) -> str:
        """A container of it."""
        return self.engine.run("from", "--pull-never", self.name).strip()

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


def built(engine: Buildah, *flags: str) -> Image:
    """Build it by `make image`, and the list of its parts beside."""
    return Image(engine.make_image(NAME, VERSION, *flags), ROOT / "build" / "sbom.json", engine)
