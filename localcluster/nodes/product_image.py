"""The image that is shipped, as real nodes take it in: built once for the sources as they are, and kept."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from localcluster.nodes.buildah import Buildah
from localcluster.programs import build
from localcluster.servers import ROOT

NAME, VERSION = "localhost/nodemaintenance", "0.0.0"
IMAGE = f"{NAME}:v{VERSION}"
MADE_OF = ("Dockerfile", "requirements.txt", "functions", "eventing", "kube", "console")
"""What the Dockerfile takes in."""
IGNORED = "__pycache__"


def archive() -> Path:
    """Give the archive of it, like one of `docker save`; a minute's work where there is none of these sources yet."""
    found = build.cache() / f"image-{digest(ROOT)}.tar"
    if not found.exists():
        with build.alone("the image", "image.lock"):
            if not found.exists():
                for older in build.cache().glob("image-*.tar"):
                    older.unlink(missing_ok=True)
                _build(found)
    return found


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


def _build(wanted: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-image-", dir=build.cache()) as folder:
        buildah = Buildah(Path(folder))
        try:
            name = buildah.make_image(NAME, VERSION)
            part = wanted.with_suffix(".part")
            part.unlink(missing_ok=True)
            buildah.run("push", name, f"docker-archive:{part}:{name}")
            part.rename(wanted)
        finally:
            buildah.close()
