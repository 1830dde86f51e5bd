"""Builds the product's image for real nodes once for each version of the sources, and caches it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from localcluster.nodes import buildah
from localcluster.nodes.buildah import Buildah
from localcluster.programs import build
from localcluster.servers import ROOT

IMAGE_NAME, VERSION = "localhost/nodemaintenance", "0.0.0"
IMAGE = f"{IMAGE_NAME}:v{VERSION}"
SOURCES = ("Dockerfile", "requirements.txt", "functions", "eventing", "kube", "console")
"""The files and directories that the Dockerfile copies or reads."""
IGNORED_DIR = "__pycache__"
MAX_CACHED_IMAGES = 2
"""Number of images from other source versions to keep, because another work tree may be about to import one."""


def ensure_archive() -> Path:
    """Return the image's archive in the format of `docker save`; building it for changed sources takes a minute."""
    return buildah.ensure_archive(build.get_cache_dir() / f"image-{compute_digest(ROOT)}.tar", _build_image)


def compute_digest(sources: Path, names: Iterable[str] = SOURCES) -> str:
    """Return a digest of the files and directories `names` in the directory `sources`."""
    digest = hashlib.sha256()
    for file in sorted(file for name in names for file in _list_files(sources / name)):
        digest.update(f"{file.relative_to(sources)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _list_files(path: Path) -> list[Path]:
    paths = path.rglob("*") if path.is_dir() else [path]
    return [file for file in paths if file.is_file() and IGNORED_DIR not in file.parts]


def remove_old_archives(prefix: str) -> None:
    """Remove archives with this prefix except the newest ones; call this function before adding an archive."""
    archives = sorted(build.get_cache_dir().glob(f"{prefix}-*.tar"), key=lambda file: file.stat().st_mtime)
    for older in archives[:-MAX_CACHED_IMAGES]:
        older.unlink(missing_ok=True)


def _build_image(buildah: Buildah) -> str:
    remove_old_archives("image")
    return buildah.build_product_image(IMAGE_NAME, VERSION)
