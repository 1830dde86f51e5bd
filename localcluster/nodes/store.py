"""What containerd keeps of images: taken in once for a set of archives, and given to each node by hard links.

Our image alone takes a node ten seconds to unpack. What is unpacked is never written to: a container's own layer is
above it, and an image that is deleted gives up its names for files, not the files.
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
from localcluster.trouble import LocalClusterError

ROOT = "containerd"
"""A store is the root of a containerd, in a folder of that name: which `leftovers` knows."""
KEPT = 2
"""Sets that were used last, beside the one in use; each takes up to 2 GB."""
UNFINISHED = "images.new-"
"""What the name of a folder begins with that is no set, or none any more."""
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
    """Put the images of archives into the folders of nodes, each as `containerd` in it, before that runs.

    Raises `LocalClusterError` where containerd refuses an archive.
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
    """Give what tells one set of images from another: their names, and their settings, which name the layers."""
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
    """Have a containerd of its own take them in."""
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
    """Give what is wrong, or ""."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""


def _link(kept: Path, root: Path) -> None:
    """Give a node all files but those that containerd writes to, its databases: of these a copy."""
    together = kept.stat().st_dev == root.parent.stat().st_dev
    wrong = _run("cp", "--archive", *(["--link"] if together else []), str(kept), str(root))
    if wrong:
        raise LocalClusterError(f"{root}: the images of a real node were not put there: {wrong}")
    for database in root.glob("*/*.db"):
        database.unlink()
        shutil.copy2(kept / database.relative_to(root), database)


def _forget() -> None:
    """Remove what was not used of late, and what a killed builder left, before there is one more.

    A set has another name first: who is killed amid the removal leaves no half of one behind.
    """
    kept = sorted(cache().glob("images-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in kept[KEPT:]:
        folder.rename(cache() / f"{UNFINISHED}{folder.name}")
    for folder in cache().glob(f"{UNFINISHED}*"):
        shutil.rmtree(folder, ignore_errors=True)
