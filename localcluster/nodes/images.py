"""Images that contain one program, built FROM scratch as archives in the format of `docker save`, without an engine."""

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
BIN_DIR = PurePosixPath("/bin")


@dataclass(frozen=True)
class Image:
    """An image with one program and the libraries that it is linked against.

    Attributes:
        name: The image's name with its tag.
        program: The file of the program.
        links: Further names for the program: a name in `/bin`, or an absolute path.
        command: The default command; the path is absolute, since a sandbox container has no PATH.
        user: The numeric user; a pod with `runAsNonRoot` needs one that is not 0.
    """

    name: str
    program: Path
    command: Sequence[str]
    links: Sequence[str] = ()
    user: int = 0


def get_architecture() -> str:
    """Return the processor architecture of this host in Go's terms."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def write_image(image: Image, file: Path) -> Path:
    """Write the archive; return its path."""
    layer = _build_layer(image)
    config = json.dumps(_build_config(image, hashlib.sha256(layer).hexdigest())).encode()
    manifest = [{"Config": "config.json", "RepoTags": [image.name], "Layers": ["layer.tar"]}]
    with tarfile.open(file, "w") as archive:
        for name, content in (
            ("layer.tar", layer),
            ("config.json", config),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add_file(archive, name, content, 0o644)
    return file


def _build_layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        _add_file(layer, f"bin/{image.program.name}", image.program.read_bytes(), 0o755)
        for library in _list_libraries(image.program):
            _add_file(layer, str(library).lstrip("/"), library.read_bytes(), 0o755)
        for name in image.links:
            link = tarfile.TarInfo(str(BIN_DIR / name).lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, str(BIN_DIR / image.program.name)
            layer.addfile(link)
        for folder in ("tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
    return buffer.getvalue()


def _list_libraries(program: Path) -> list[Path]:
    """Return the libraries of a program: none, or libc and its loader if Go built it with a C compiler."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(field) for line in output.splitlines() for field in line.split() if field.startswith("/")]


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _build_config(image: Image, layer_digest: str) -> dict[str, Any]:
    return {
        "architecture": get_architecture(),
        "os": "linux",
        "config": {"Cmd": [*image.command], "Env": ["PATH=/bin"], "WorkingDir": "/", "User": str(image.user)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }
