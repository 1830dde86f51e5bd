"""Uses kube-apiserver, etcd and kubectl from the directory in KUBEBUILDER_ASSETS, as Kubernetes' envtest does."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from localcluster.errors import LocalClusterError

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")


def find_assets() -> Path | None:
    """Return the directory of prebuilt binaries, or None if the variable is not set.

    Raises `LocalClusterError` if the directory lacks a binary.
    """
    value = os.environ.get(ASSETS_VARIABLE)
    if not value:
        return None
    directory = Path(value).resolve()
    missing = _list_missing_programs(directory)
    if missing:
        raise LocalClusterError(
            f"{ASSETS_VARIABLE}={value}: {', '.join(missing)} not found: set it to a directory with "
            f"{', '.join(PROGRAMS)}, such as `setup-envtest use -p path` prints, or unset it to build them"
        )
    return directory


def has_all_programs(directory: Path) -> bool:
    """Return whether a directory has all prebuilt binaries."""
    return not _list_missing_programs(directory)


def _list_missing_programs(directory: Path) -> list[str]:
    return [name for name in PROGRAMS if not os.access(directory / name, os.X_OK)]


def get_link_dir(assets: Path, built: Path, cache: Path) -> Path:
    """Return the path of the directory with links to the prebuilt and to the locally built binaries."""
    digest = hashlib.sha256(f"{assets}\0{built}".encode())
    return cache / f"assets-{digest.hexdigest()[:12]}"


def link_programs(assets: Path, built: Path, names: tuple[str, ...], link_dir: Path, version: str) -> None:
    """Create the directory that `get_link_dir` names; print a warning if the prebuilt API server's version differs.

    Args:
        assets: The directory of the prebuilt binaries.
        built: The directory of the locally built binaries.
        names: The names of the locally built binaries.
        link_dir: The directory to create.
        version: The Kubernetes version of the locally built binaries.
    """
    staging = link_dir.with_name(f"{link_dir.name}.new-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for source, programs in ((assets, PROGRAMS), (built, names)):
        for name in programs:
            (staging / name).symlink_to(source / name)
    staging.rename(link_dir)
    print(f"using {', '.join(PROGRAMS)} from {assets}", flush=True)
    assets_version = _read_version(assets / "kube-apiserver") or "of unknown version"
    if assets_version != version:
        print(f"warning: kube-apiserver is {assets_version}, but {', '.join(names)} are {version}", flush=True)


def _read_version(apiserver: Path) -> str:
    """Return the version of an API server binary, such as v1.37.2; "" if it prints none."""
    done = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().rpartition(" ")[2] if done.returncode == 0 else ""
