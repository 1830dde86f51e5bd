"""Uses kube-apiserver, etcd and kubectl from the directory in KUBEBUILDER_ASSETS, as Kubernetes' envtest does."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from localcluster.errors import LocalClusterError

VARIABLE = "KUBEBUILDER_ASSETS"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")


def folder() -> Path | None:
    """Return the directory of prebuilt binaries, or None if the variable is not set.

    Raises `LocalClusterError` if the directory lacks a binary.
    """
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
    """Return whether a directory has all prebuilt binaries."""
    return not _missing(place)


def _missing(place: Path) -> list[str]:
    return [name for name in PROGRAMS if not os.access(place / name, os.X_OK)]


def joined(given: Path, built: Path, cache: Path) -> Path:
    """Return the path of the directory that links to the prebuilt and to the locally built programs."""
    digest = hashlib.sha256(f"{given}\0{built}".encode())
    return cache / f"assets-{digest.hexdigest()[:12]}"


def join(given: Path, built: Path, names: tuple[str, ...], place: Path, version: str) -> None:
    """Create the directory that `joined` names; print a notice if the prebuilt API server has another version.

    Args:
        given: The directory of the prebuilt binaries.
        built: The directory of the locally built programs.
        names: The locally built programs.
        place: The directory to create.
        version: The Kubernetes version of the locally built programs.
    """
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
    """Return the version of an API server binary, such as v1.36.3; "" if it prints none."""
    asked = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=False)
    return asked.stdout.strip().rpartition(" ")[2] if asked.returncode == 0 else ""
