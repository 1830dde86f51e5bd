"""The images of real nodes: archives in the format of `docker save`, and a store of unpacked images.

An image of one program is built FROM scratch without a container engine. Unpacking the product's image on each node
would take ten seconds per node. Instead, the nodes share the unpacked files, which containerd never writes to: a
container writes to its own layer, and deleting an image only unlinks the files.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from localcluster.errors import LocalClusterError
from localcluster.processes import Server, wait_until_ready
from localcluster.programs.build import get_cache_dir, hold_build_lock

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
BIN_DIR = PurePosixPath("/bin")
CONTAINERD_DIR = "containerd"
"""The name of each node's containerd root directory; `cgroups.remove_leftover_cgroups_and_data` removes it."""
MAX_CACHED_STORES = 2
"""Number of recently used image stores to keep besides the current one; each takes up to 2 GB."""
PARTIAL_PREFIX = "images.new-"
"""Prefix of the names of directories that are incomplete or are being deleted."""
CONFIG_TEMPLATE = """version = 2
root = "{root}"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Image:
    """An image with one program and the libraries that it is linked against.

    Attributes:
        name: The image's name with its tag.
        program: The program's file.
        links: Symbolic links to the program: names in `/bin`, or absolute paths.
        command: The default command, with an absolute path, because a pod's sandbox container has no PATH.
        user: The UID; a pod with `runAsNonRoot` requires one that is not 0.
    """

    name: str
    program: Path
    command: Sequence[str]
    links: Sequence[str] = ()
    user: int = 0


def get_architecture() -> str:
    """Return the processor architecture of this host, as Go names it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def write_image(image: Image, file: Path) -> Path:
    """Write the image as an archive; return the archive's path."""
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
    """Return the shared libraries of a program: none, or libc and its loader if Go used a C compiler."""
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


def install_images(archives: Iterable[Path], snapshotter: str, node_directories: Iterable[Path]) -> None:
    """Put the images from the archives into each node's containerd directory, before the node's containerd starts.

    Raises `LocalClusterError` if containerd rejects an archive.
    """
    archive_files = list(archives)
    store = get_cache_dir() / f"images-{_compute_digest(archive_files, snapshotter)}"
    with hold_build_lock("the images of real nodes", "images.lock"):
        if not store.exists():
            _remove_unused_image_stores()
            _import_images(store, archive_files, snapshotter)
        store.touch()
        for folder in node_directories:
            _link_store(store, folder / CONTAINERD_DIR)


def _compute_digest(archives: list[Path], snapshotter: str) -> str:
    """Return a digest of a set of images, computed from their manifests and configs, which identify the layers."""
    digest = hashlib.sha256(snapshotter.encode())
    for archive in archives:
        with tarfile.open(archive) as opened:
            for name in ("manifest.json", *_list_config_files(opened)):
                digest.update(_read_member(opened, name))
    return digest.hexdigest()[:12]


def _list_config_files(archive: tarfile.TarFile) -> list[str]:
    return [image["Config"] for image in json.loads(_read_member(archive, "manifest.json"))]


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise LocalClusterError(f"image archive {archive.name!r} has no file {name}")
    return file.read()


def _import_images(store: Path, archives: list[Path], snapshotter: str) -> None:
    """Import the archives into a new store with a temporary containerd."""
    with tempfile.TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=store.parent) as name:
        folder = Path(name)
        (folder / "config.toml").write_text(CONFIG_TEMPLATE.format(root=folder / CONTAINERD_DIR, folder=folder))
        command = ("unshare", "--mount", "containerd", "--config", folder / "config.toml")
        containerd = Server("containerd", command, folder / "containerd.log")
        call = ["ctr", "--address", str(folder / "socket"), "--namespace", "k8s.io"]
        containerd.start()
        try:
            wait_until_ready("containerd", lambda: not _run_command(*call, "version"), [containerd], TIMEOUT_SECONDS)
            for archive in archives:
                error = _run_command(*call, "images", "import", "--snapshotter", snapshotter, str(archive))
                if error:
                    raise LocalClusterError(f"cannot import image archive {archive}: {error}")
        finally:
            containerd.stop()
        (folder / CONTAINERD_DIR).rename(store)


def _run_command(*command: str) -> str:
    """Run a command; return its error message, or "" if it succeeded."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""


def _link_store(store: Path, target: Path) -> None:
    """Create a node's containerd directory with hard links to the store, and with copies of containerd's databases."""
    on_same_device = store.stat().st_dev == target.parent.stat().st_dev
    error = _run_command("cp", "--archive", *(["--link"] if on_same_device else []), str(store), str(target))
    if error:
        raise LocalClusterError(f"cannot copy the images of a real node to {target}: {error}")
    for database in target.glob("*/*.db"):
        database.unlink()
        shutil.copy2(store / database.relative_to(target), database)


def _remove_unused_image_stores() -> None:
    """Remove stores that were not used recently, and incomplete directories from killed processes.

    Call this function before adding a store. It renames a store before it deletes the files, so that a killed process
    leaves no incomplete store under a valid name.
    """
    stores = sorted(get_cache_dir().glob("images-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in stores[MAX_CACHED_STORES:]:
        folder.rename(get_cache_dir() / f"{PARTIAL_PREFIX}{folder.name}")
    for folder in get_cache_dir().glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
