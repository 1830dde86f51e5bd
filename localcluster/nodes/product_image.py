"""The image that is shipped, as real nodes take it in: built once for the sources as they are, and kept."""

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
"""What the Dockerfile takes in."""
IGNORED = "__pycache__"
KEPT = 2
"""Images of other sources that stay: another work tree may be about to take one in."""


def archive() -> Path:
    """Give the archive of it, like one of `docker save`; a minute's work where there is none of these sources yet."""
    return buildah.kept(build.cache() / f"image-{digest(ROOT)}.tar", _build)


def digest(sources: Path) -> str:
    """Give what tells the sources of one image from those of another."""
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
