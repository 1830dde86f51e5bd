"""Builds the image that func would build from this repository, in which func's middleware serves function.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

from localcluster.nodes import buildah, product_image
from localcluster.nodes.buildah import Buildah
from localcluster.programs import build, func_module
from localcluster.servers import ROOT

IMAGE = "localhost/functions:latest"
DOCKERFILE = Path(__file__).with_name("func.Dockerfile")
IGNORE_FILE = ".funcignore"
SOURCES = (
    *("func.yaml", "function.py", "pyproject.toml", "README.md", "LICENSE", IGNORE_FILE),
    *("functions", "eventing", "kube", "console"),
    *("localcluster/nodes/func.Dockerfile", "localcluster/programs/func_module.py"),
)
"""The files from which the image is built; func_module.py selects the version of func's scaffolding."""
ALWAYS_IGNORED = (".git", ".func", ".funcignore", ".gitignore")
"""Files that func excludes from an image even if `IGNORE_FILE` does not list them."""


def ensure_archive() -> Path:
    """Return the image's archive in the format of `docker save`; building it for changed sources takes a minute."""
    digest = product_image.compute_digest(ROOT, SOURCES)
    return buildah.ensure_archive(build.get_cache_dir() / f"func-image-{digest}.tar", _build_image)


def build_image(engine: Buildah, name: str = IMAGE) -> str:
    """Build the image from the sources and func's scaffolding, as func does; return the image's name."""
    with tempfile.TemporaryDirectory() as folder:
        ignore_file = Path(folder) / "ignore"
        ignore_file.write_text("\n".join(map(_convert_pattern, list_ignored_patterns())))
        engine.run(
            *("build", "--network", "host", "--pull-never", *engine.list_mount_flags()),
            *("--build-arg", f"BASE={engine.base_image}", "--ignorefile", ignore_file),
            *("--build-context", f"scaffolding={func_module.fetch_scaffolding()}"),
            *("--file", DOCKERFILE, "--tag", name, ROOT),
        )
    return name


def list_ignored_patterns() -> list[str]:
    """Return the patterns of files that func excludes from an image."""
    lines = [line.strip() for line in (ROOT / IGNORE_FILE).read_text().splitlines()]
    return [*ALWAYS_IGNORED, *(line for line in lines if line and not line.startswith("#"))]


def _convert_pattern(pattern: str) -> str:
    """Convert a func pattern for buildah: func's patterns match at any depth unless they start with a slash."""
    return pattern if pattern.startswith("/") else f"**/{pattern.rstrip('/')}"


def _build_image(engine: Buildah) -> str:
    product_image.remove_old_archives("func-image")
    return build_image(engine)
