"""Downloads prebuilt kube-apiserver, etcd and kubectl with `setup-envtest` if the network allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.programs import assets
from localcluster.programs.go_install import NO_DWARF_FLAG, build_environment

MODULE_DIR = Path(__file__).parents[1] / "envtest"
"""The directory of the go.mod that requires setup-envtest."""
DOWNLOAD_TIMEOUT_SECONDS = 300.0
"""Timeout of the download, which is about 100 MB."""
INDEX_VARIABLE = "ENVTEST_INDEX"
"""Environment variable with the URL of a release index that replaces setup-envtest's default, such as a mirror's."""


def download(go: Path, cache: Path, version: str) -> None:
    """Try to download the binaries of a Kubernetes release such as v1.37.2 into `cache`; print the outcome."""
    release = _parse_minor(version)
    print(f"downloading prebuilt programs of Kubernetes {release} with setup-envtest", flush=True)
    for leftover in cache.glob("envtest-*.new-*"):  # leftovers of a killed download
        shutil.rmtree(leftover, ignore_errors=True)
    folder = _get_download_dir(cache, version)
    staging = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    index = os.environ.get(INDEX_VARIABLE)
    options = ["--bin-dir", str(staging), *(["--index", index] if index else [])]
    command = [str(go), "tool", "setup-envtest", "use", f"{release}.x", *options]
    environment = build_environment(GOFLAGS=NO_DWARF_FLAG)  # Go compiles the standard library once per set of flags
    try:
        done = subprocess.run(
            command,
            cwd=MODULE_DIR,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_TIMEOUT_SECONDS,
        )
        lines = [f"exit {done.returncode}", *(done.stderr or done.stdout).split("\n")]
        failure = "" if done.returncode == 0 else [line for line in lines if line.strip()][-1]
    except subprocess.TimeoutExpired:
        failure = f"timed out after {DOWNLOAD_TIMEOUT_SECONDS:.0f} s"
    if failure:
        shutil.rmtree(staging, ignore_errors=True)
        print(f"cannot download them ({failure}); building kube-apiserver, etcd and kubectl instead", flush=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)


def find_downloaded(cache: Path, version: str) -> Path | None:
    """Return the directory with the binaries of this minor version, or None if they were not downloaded."""
    candidates = sorted((_get_download_dir(cache, version) / "k8s").glob(f"{_parse_minor(version)}.*-{sys.platform}-*"))
    complete = [folder for folder in candidates if assets.has_all_programs(folder)]
    return complete[-1] if complete else None


def _get_download_dir(cache: Path, version: str) -> Path:
    """Return the directory of a minor version; another work tree may use another version at the same time."""
    return cache / f"envtest-{_parse_minor(version)}"


def _parse_minor(version: str) -> str:
    """Return the minor version, for example 1.37 for v1.37.2."""
    return version.removeprefix("v").rpartition(".")[0]
