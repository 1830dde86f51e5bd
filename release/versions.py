"""Reads and writes the product's version, whose only source is `pyproject.toml`."""

from __future__ import annotations

import re
from pathlib import Path

from release.errors import ReleaseError

ROOT = Path(__file__).parents[1]
FILE_NAME = "pyproject.toml"
DERIVED_PATTERNS = ("deploy/*/pyproject.toml", "charts/*/Chart.yaml")
"""Patterns of the files to which `write_version` copies the version, because other tools read them."""
VERSION_PATTERN = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)\.(0|[1-9]\d*))?")
"""Matches versions that are valid for Semantic Versioning, for Python packages and for image tags."""
_LINE_PATTERN = re.compile(r'^((?:version = "|version: "?|appVersion: "?))([^"\s]+)', re.MULTILINE)


def check_version(version: str) -> None:
    """Raise `ReleaseError` unless a version can be released."""
    if not VERSION_PATTERN.fullmatch(version):
        example = "write MAJOR.MINOR.PATCH, for a candidate followed by -alpha.N, -beta.N or -rc.N: VERSION=1.2.3-rc.1"
        raise ReleaseError(f'version "{version}" is not a semantic version that can be released: {example}')


def is_candidate(version: str) -> bool:
    """Return whether a version is a candidate: a pre-release with a suffix such as `-rc.1`."""
    return "-" in version


def read_version(root: Path = ROOT) -> str:
    """Return the version in a checkout's `pyproject.toml`. Raises `ReleaseError` if the file has no version."""
    match = _LINE_PATTERN.search((root / FILE_NAME).read_text())
    if not match:
        raise ReleaseError(f'{root / FILE_NAME} has no line `version = "..."`: add it to the table [project]')
    return match[2]


def write_version(version: str, root: Path = ROOT) -> None:
    """Write the version to a checkout's `pyproject.toml`, and to the files that match `DERIVED_PATTERNS`."""
    for file in list_version_files(root):
        file.write_text(_LINE_PATTERN.sub(rf"\g<1>{version}", file.read_text()))


def list_version_files(root: Path = ROOT) -> list[Path]:
    """Return the paths of the files that contain the version, except files that `make bundle` generates."""
    return [root / FILE_NAME, *(file for pattern in DERIVED_PATTERNS for file in sorted(root.glob(pattern)))]
