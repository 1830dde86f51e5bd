"""Downloads prebuilt kube-apiserver, etcd and kubectl with `setup-envtest` if the network allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.programs import assets
from localcluster.programs.go_install import NO_DEBUG_INFORMATION, environment

MODULE = Path(__file__).parents[1] / "envtest"
"""The directory of the go.mod that requires setup-envtest."""
SECONDS = 300.0
"""Timeout of the download, which is about 100 MB."""
INDEX = "ENVTEST_INDEX"
"""Environment variable with the URL of another release index than setup-envtest's default, for example a mirror's."""


def download(go: Path, cache: Path, version: str) -> None:
    """Try to download the binaries of a Kubernetes release such as v1.36.3 into `cache`; print the outcome."""
    release = _minor(version)
    print(f"looking for ready-made programs of Kubernetes {release}: setup-envtest", flush=True)
    for left in cache.glob("envtest-*.new-*"):  # remains of a killed download
        shutil.rmtree(left, ignore_errors=True)
    folder = _folder(cache, version)
    fresh = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    index = os.environ.get(INDEX)
    where = ["--bin-dir", str(fresh), *(["--index", index] if index else [])]
    command = [str(go), "tool", "setup-envtest", "use", f"{release}.x", *where]
    given = environment(GOFLAGS=NO_DEBUG_INFORMATION)  # Go compiles the standard library once per set of flags
    try:
        done = subprocess.run(
            command, cwd=MODULE, env=given, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        lines = [f"exit {done.returncode}", *(done.stderr or done.stdout).split("\n")]
        why = "" if done.returncode == 0 else [line for line in lines if line.strip()][-1]
    except subprocess.TimeoutExpired:
        why = f"not done after {SECONDS:.0f} s"
    if why:
        shutil.rmtree(fresh, ignore_errors=True)
        print(f"none to be had ({why}); kube-apiserver, etcd and kubectl are built", flush=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def downloaded(cache: Path, version: str) -> Path | None:
    """Return the directory with the binaries of this minor version, or None if they were not downloaded."""
    found = sorted((_folder(cache, version) / "k8s").glob(f"{_minor(version)}.*-{sys.platform}-*"))
    whole = [folder for folder in found if assets.is_whole(folder)]
    return whole[-1] if whole else None


def _folder(cache: Path, version: str) -> Path:
    """Return the directory of a minor version; another work tree may use another version at the same time."""
    return cache / f"envtest-{_minor(version)}"


def _minor(version: str) -> str:
    """Return the minor version, for example 1.36 for v1.36.3."""
    return version.removeprefix("v").rpartition(".")[0]
