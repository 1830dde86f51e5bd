"""Images built with buildah: their configuration, their files, and servers that run them."""

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

IMAGE_NAME, IMAGE_VERSION = "localhost/nodemaintenance", "9.9.9"


@dataclass(frozen=True)
class BuiltImage:
    """An image that buildah has built."""

    name: str
    buildah: Buildah

    @cached_property
    def oci_config(self) -> dict[str, Any]:
        """Return the image's OCI configuration."""
        config: dict[str, Any] = json.loads(self.buildah.run("inspect", "--type", "image", self.name))["OCIv1"]
        return config

    @cached_property
    def files(self) -> Path:
        """Return the directory at which the image's files are mounted."""
        return Path(self.buildah.run("mount", self.container).strip())

    @cached_property
    def container(self) -> str:
        """Return the name of a working container of the image."""
        return self.buildah.run("from", "--pull-never", self.name).strip()

    def build_server(self, name: str, log_file: Path, environment: Mapping[str, str], mounted_path: Path) -> Server:
        """Build a server that runs the image as its user in the host's network; `mounted_path` is mounted read-only."""
        options = [f"--env={key}={value}" for key, value in environment.items()]
        command = [
            "buildah",
            "run",
            f"--volume={mounted_path}:{mounted_path}:ro",
            *options,
            self.container,
            "--",
            *self.oci_config["config"]["Cmd"],
        ]
        return Server(name, command, log_file, self.buildah.environment)


@dataclass(frozen=True)
class ProductImage(BuiltImage):
    """The product's image with its software bill of materials."""

    sbom_file: Path

    @property
    def size_bytes(self) -> int:
        """Return the size in bytes of the files that the image adds to its base image."""
        return sum(
            file.lstat().st_size for directory in ("venv", "app") for file in (self.files / directory).rglob("*")
        )


def build_image(engine: Buildah, *flags: str) -> ProductImage:
    """Build the image and its software bill of materials with `make image`."""
    name = engine.build_product_image(IMAGE_NAME, IMAGE_VERSION, *flags)
    return ProductImage(name, engine, ROOT / "build" / "sbom.json")
