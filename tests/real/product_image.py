"""The product's image as buildah built it: its configuration, its files and its processes."""

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
    """A built image with its software bill of materials."""

    name: str
    parts: Path
    engine: Buildah

    @cached_property
    def told(self) -> dict[str, Any]:
        """Return the image's OCI configuration."""
        found: dict[str, Any] = json.loads(self.engine.run("inspect", "--type", "image", self.name))["OCIv1"]
        return found

    @property
    def size(self) -> int:
        """Return the size in bytes of the files that the image adds to its base."""
        return sum(file.lstat().st_size for room in ("venv", "app") for file in (self.files / room).rglob("*"))

    @cached_property
    def files(self) -> Path:
        """Return the directory with all files of the image."""
        return Path(self.engine.run("mount", self.container).strip())

    @cached_property
    def container(self) -> str:
        """Return the name of a container of the image."""
        return self.engine.run("from", "--pull-never", self.name).strip()

    def server(self, name: str, log: Path, environment: Mapping[str, str], mounted: Path) -> Server:
        """Build the server that runs the image as its own user in the host's network; `mounted` is read-only."""
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
    """Build the image and its software bill of materials with `make image`."""
    return Image(engine.make_image(NAME, VERSION, *flags), ROOT / "build" / "sbom.json", engine)
