"""Writes the archives that krew installs: the command, its libraries, and a launcher script for the user's Python.

A zipapp would be a single file, but Python cannot import compiled libraries from a zipapp.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from localcluster.plugin.libraries import PYTHON_VERSIONS
from localcluster.servers import ROOT

PROGRAM = "kubectl-maintenance"
LAUNCHER = """#!/usr/bin/env python3
# Runs `kubectl maintenance`, or as kubectl_complete-maintenance its completion, with the libraries of this directory.
import os
import sys

if not ({oldest}) <= sys.version_info[:2] <= ({newest}):
    sys.exit("error: python3 on PATH is Python %d.%d: kubectl maintenance requires {range}" % sys.version_info[:2])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))
if os.path.basename(sys.argv[0]) == "kubectl_complete-maintenance":
    from console.completion import main
else:
    from console.cli import main
main()
"""
UNUSED_PATTERN = re.compile(
    r"bin/|kubernetes/(client|aio/client/api)/|kubernetes/aio/client/models/[a-z]|sqlalchemy/testing/|[^/]+/tests/"
)
"""Matches the libraries' files that `kubectl maintenance` does not import; the product's image omits them, too."""


def write_archive(wheel: Path, libraries: Path, archive: Path) -> None:
    """Write an archive with the launcher, the wheel's modules, and the modules in the directory `libraries`.

    The same input produces the same bytes, so that the archive's checksum is reproducible.
    """
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        _add_tar_member(tar, PROGRAM, build_launcher().encode(), 0o755)
        _add_tar_member(tar, "LICENSE", (ROOT / "LICENSE").read_bytes())
        for name, content in sorted(_iter_modules(wheel, libraries)):
            _add_tar_member(tar, f"lib/{name}", content)


def build_launcher() -> str:
    """Return the launcher's source; even unsupported versions of Python can parse it, and print its error."""
    oldest, newest = PYTHON_VERSIONS[0], PYTHON_VERSIONS[-1]
    fields = {"oldest": oldest.replace(".", ", "), "newest": newest.replace(".", ", ")}
    return LAUNCHER.format(**fields, range=f"Python {oldest} to {newest}")


def _iter_modules(wheel: Path, libraries: Path) -> Iterator[tuple[str, bytes]]:
    with ZipFile(wheel) as zip_file:
        for name in zip_file.namelist():
            yield name, zip_file.read(name)
    for folder, _, files in os.walk(libraries, followlinks=True):
        for path in (Path(folder, file) for file in files):
            name = path.relative_to(libraries).as_posix()
            if path.suffix != ".pyc" and not UNUSED_PATTERN.match(name):
                yield name, path.read_bytes()


def _add_tar_member(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, BytesIO(content))
