"""Downloads kube-apiserver, etcd and kubectl ready-made with `setup-envtest`, where the network allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.programs import assets
from localcluster.programs.go_install import NO_DEBUG_INFORMATION, environment

MODULE = Path(__file__).parents[1] / "envtest"
"""The folder with the go.mod that names setup-envtest."""
SECONDS = 300.0
"""Longest download: about 100 MB."""
INDEX = "ENVTEST_INDEX"
"""The environment variable that names another index of releases than setup-envtest's own, as that of a mirror."""


def download(go: Path, cache: Path, version: str) -> None:
    """Try to download the programs of a Kubernetes release such as v1.36.3 into `cache`; say which way it went."""
    release = _minor(version)
    print(f"looking for ready-made programs of Kubernetes {release}: setup-envtest", flush=True)
    for left in cache.glob("envtest-*.new-*"):  # a download was killed
        shutil.rmtree(left, ignore_errors=True)
    folder = _folder(cache, version)
    fresh = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    index = os.environ.get(INDEX)
    where = ["--bin-dir", str(fresh), *(["--index", index] if index else [])]
    command = [str(go), "tool", "setup-envtest", "use", f"{release}.x", *where]
    given = environment(GOFLAGS=NO_DEBUG_INFORMATION)  # the standard library is compiled once for this and the servers
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
    """Return the folder with the programs of that release's minor version, None if they were not downloaded."""
    found = sorted((_folder(cache, version) / "k8s").glob(f"{_minor(version)}.*-{sys.platform}-*"))
    whole = [folder for folder in found if assets.is_whole(folder)]
    return whole[-1] if whole else None


def _folder(cache: Path, version: str) -> Path:
    """Return the folder of a release: another clone may use another release at the same time."""
    return cache / f"envtest-{_minor(version)}"


def _minor(version: str) -> str:
    """Return 1.36 of v1.36.3."""
    return version.removeprefix("v").rpartition(".")[0]
