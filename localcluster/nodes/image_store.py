"""containerd's image data: imported once per set of archives, and given to each node as hard links.

Unpacking the product's image alone takes a node ten seconds. Unpacked files are never written to: a container writes to
its own layer, and deleting an image only unlinks the files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from localcluster.processes import Server, await_ready
from localcluster.programs.build import alone, cache
from localcluster.errors import LocalClusterError

ROOT = "containerd"
"""The name of each containerd root directory, which `leftovers` removes."""
KEPT = 2
"""The most recently used sets to keep besides the one in use; each takes up to 2 GB."""
UNFINISHED = "images.new-"
"""Prefix of directories that are unfinished or are being deleted."""
CONFIG = """version = 2
root = "{root}"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""
SECONDS = 60


def give(archives: Iterable[Path], snapshotter: str, folders: Iterable[Path]) -> None:
    """Put the images of the archives into the directory `containerd` of each node, before its containerd starts.

    Raises `LocalClusterError` if containerd rejects an archive.
    """
    known = list(archives)
    kept = cache() / f"images-{_digest(known, snapshotter)}"
    with alone("the images of real nodes", "images.lock"):
        if not kept.exists():
            _forget()
            _fill(kept, known, snapshotter)
        kept.touch()
        for folder in folders:
            _link(kept, folder / ROOT)


def _digest(archives: list[Path], snapshotter: str) -> str:
    """Return a digest of a set of images, from their manifests and configs, which identify the layers."""
    known = hashlib.sha256(snapshotter.encode())
    for archive in archives:
        with tarfile.open(archive) as opened:
            for name in ("manifest.json", *_settings(opened)):
                known.update(_read(opened, name))
    return known.hexdigest()[:12]


def _settings(archive: tarfile.TarFile) -> list[str]:
    return [image["Config"] for image in json.loads(_read(archive, "manifest.json"))]


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise LocalClusterError(f"an archive of images has no file {name}")
    return file.read()


def _fill(kept: Path, archives: list[Path], snapshotter: str) -> None:
    """Import the archives with a temporary containerd."""
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=kept.parent) as name:
        folder = Path(name)
        (folder / "config.toml").write_text(CONFIG.format(root=folder / ROOT, folder=folder))
        command = ("unshare", "--mount", "containerd", "--config", folder / "config.toml")
        containerd = Server("containerd", command, folder / "containerd.log")
        call = ["ctr", "--address", str(folder / "socket"), "--namespace", "k8s.io"]
        containerd.start()
        try:
            await_ready("containerd", lambda: not _run(*call, "version"), [containerd], SECONDS)
            for archive in archives:
                said = _run(*call, "images", "import", "--snapshotter", snapshotter, str(archive))
                if said:
                    raise LocalClusterError(f"{archive}: {said}")
        finally:
            containerd.stop()
        (folder / ROOT).rename(kept)


def _run(*command: str) -> str:
    """Run a command; return its error, or "" if it succeeded."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""


def _link(kept: Path, root: Path) -> None:
    """Give a node hard links to all files, except for copies of the databases, which containerd writes to."""
    together = kept.stat().st_dev == root.parent.stat().st_dev
    wrong = _run("cp", "--archive", *(["--link"] if together else []), str(kept), str(root))
    if wrong:
        raise LocalClusterError(f"{root}: the images of a real node were not put there: {wrong}")
    for database in root.glob("*/*.db"):
        database.unlink()
        shutil.copy2(kept / database.relative_to(root), database)


def _forget() -> None:
    """Remove the sets not used recently, and the remains of killed builders, before adding a set.

    A set is renamed first, so that a killed process leaves no partial set under a valid name.
    """
    kept = sorted(cache().glob("images-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in kept[KEPT:]:
        folder.rename(cache() / f"{UNFINISHED}{folder.name}")
    for folder in cache().glob(f"{UNFINISHED}*"):
        shutil.rmtree(folder, ignore_errors=True)
