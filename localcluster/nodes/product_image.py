"""The product's image for real nodes: built once per state of the sources, and cached."""

from __future__ import annotations

import hashlib
from pathlib import Path

from localcluster.nodes import buildah
from localcluster.nodes.buildah import Buildah
from localcluster.programs import build
from localcluster.servers import ROOT

NAME, VERSION = "localhost/nodemaintenance", "0.0.0"
IMAGE = f"{NAME}:v{VERSION}"
MADE_OF = ("Dockerfile", "requirements.txt", "functions", "eventing", "kube", "console")
"""The inputs of the Dockerfile."""
IGNORED = "__pycache__"
KEPT = 2
"""Images of other sources to keep, since another work tree may be about to import one."""


def archive() -> Path:
    """Return the image's archive in the format of `docker save`; building one for new sources takes a minute."""
    return buildah.kept(build.cache() / f"image-{digest(ROOT)}.tar", _build)


def digest(sources: Path) -> str:
    """Return a digest of the sources."""
    known = hashlib.sha256()
    for file in sorted(file for name in MADE_OF for file in _files(sources / name)):
        known.update(f"{file.relative_to(sources)}\0".encode())
        known.update(hashlib.sha256(file.read_bytes()).digest())
    return known.hexdigest()[:12]


def _files(place: Path) -> list[Path]:
    found = place.rglob("*") if place.is_dir() else [place]
    return [file for file in found if file.is_file() and IGNORED not in file.parts]


def _build(engine: Buildah) -> str:
    known = sorted(build.cache().glob("image-*.tar"), key=lambda file: file.stat().st_mtime)
    for older in known[:-KEPT]:
        older.unlink(missing_ok=True)
    return engine.make_image(NAME, VERSION)
