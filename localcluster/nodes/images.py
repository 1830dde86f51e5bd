"""Images of one program FROM scratch, as archives like those of `docker save`; no registry and no engine is asked."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
BIN = PurePosixPath("/bin")


@dataclass(frozen=True)
class Image:
    """One program with the libraries that it is linked to, and by which names it can be called.

    Attributes:
        name: with its tag.
        links: further names in `/bin`, or whole paths.
        command: what a container of it runs; the path is absolute, since a sandbox knows no PATH.
        user: who runs it, as a number: others pass for root where a pod must not be.
    """

    name: str
    program: Path
    command: Sequence[str]
    links: Sequence[str] = ()
    user: int = 0


def architecture() -> str:
    """Give the name of this machine's processor in Go's words."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def write(image: Image, file: Path) -> Path:
    """Write the archive; gives its path."""
    layer = _layer(image)
    config = json.dumps(_config(image, hashlib.sha256(layer).hexdigest())).encode()
    manifest = [{"Config": "config.json", "RepoTags": [image.name], "Layers": ["layer.tar"]}]
    with tarfile.open(file, "w") as archive:
        for name, content in (
            ("layer.tar", layer),
            ("config.json", config),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(archive, name, content, 0o644)
    return file


def _layer(image: Image) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as layer:
        _add(layer, f"bin/{image.program.name}", image.program.read_bytes(), 0o755)
        for library in _libraries(image.program):
            _add(layer, str(library).lstrip("/"), library.read_bytes(), 0o755)
        for name in image.links:
            link = tarfile.TarInfo(str(BIN / name).lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, str(BIN / image.program.name)
            layer.addfile(link)
        for folder in ("tmp", "etc"):
            made = tarfile.TarInfo(folder)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(made)
    return written.getvalue()


def _libraries(program: Path) -> list[Path]:
    """Give the files that a program is linked to: none, or where Go found a C compiler libc and what loads it."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/")]


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _config(image: Image, layer: str) -> dict[str, Any]:
    return {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Cmd": [*image.command], "Env": ["PATH=/bin"], "WorkingDir": "/", "User": str(image.user)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }
