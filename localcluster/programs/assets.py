"""Takes kube-apiserver, etcd and kubectl from the folder that KUBEBUILDER_ASSETS names, as Kubernetes' envtest does."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from localcluster.trouble import LocalClusterError

VARIABLE = "KUBEBUILDER_ASSETS"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")


def folder() -> Path | None:
    """Give the folder of ready-made programs, None where none is named; LocalClusterError if it lacks one of them."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    place = Path(named).resolve()
    missing = _missing(place)
    if missing:
        raise LocalClusterError(
            f"{VARIABLE}={named} has no program {', '.join(missing)}: let it name a folder with {', '.join(PROGRAMS)}, "
            "as `setup-envtest use -p path` prints one, or unset it to have them built"
        )
    return place


def is_whole(place: Path) -> bool:
    """Return whether a folder has all ready-made programs."""
    return not _missing(place)


def _missing(place: Path) -> list[str]:
    return [name for name in PROGRAMS if not os.access(place / name, os.X_OK)]


def joined(given: Path, built: Path, cache: Path) -> Path:
    """Give the name of the folder that holds links to the given programs and to the built ones beside them."""
    digest = hashlib.sha256(f"{given}\0{built}".encode())
    return cache / f"assets-{digest.hexdigest()[:12]}"


def join(given: Path, built: Path, names: tuple[str, ...], place: Path, version: str) -> None:
    """Make that folder: `names` are the built programs; say so when the given API server is of another version."""
    fresh = place.with_name(f"{place.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for source, programs in ((given, PROGRAMS), (built, names)):
        for name in programs:
            (fresh / name).symlink_to(source / name)
    fresh.rename(place)
    print(f"{', '.join(PROGRAMS)} from {given}", flush=True)
    theirs = _version(given / "kube-apiserver")
    if theirs != version:
        print(f"its kube-apiserver is {theirs or 'of no known version'}, {', '.join(names)} fit {version}", flush=True)


def _version(apiserver: Path) -> str:
    """Give the version that an API server says it has, as v1.36.3; "" if it says none."""
    asked = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=False)
    return asked.stdout.strip().rpartition(" ")[2] if asked.returncode == 0 else ""
