"""Provides prebuilt kube-apiserver, etcd and kubectl, from the directory KUBEBUILDER_ASSETS or from `setup-envtest`.

`setup-envtest` downloads these binaries if the network allows it. Symbolic links combine them with the locally built
binaries in one directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.programs.go_install import NO_DWARF_FLAG, build_environment

MODULE_DIR = Path(__file__).parents[1] / "envtest"
"""The directory of the go.mod that requires `setup-envtest`."""
DOWNLOAD_TIMEOUT_SECONDS = 300.0
"""Timeout of the download of about 100 MB."""
INDEX_VARIABLE = "ENVTEST_INDEX"
"""Environment variable with the URL of a release index, such as a mirror's, that replaces setup-envtest's default."""
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")


def download(go: Path, cache: Path, version: str) -> None:
    """Try to download the binaries of a Kubernetes release, such as v1.37.2, into `cache`; print the outcome."""
    release = _parse_minor_version(version)
    print(f"downloading prebuilt programs of Kubernetes {release} with setup-envtest", flush=True)
    for leftover in cache.glob("envtest-*.new-*"):  # Killed downloads leave these directories.
        shutil.rmtree(leftover, ignore_errors=True)
    folder = _get_download_dir(cache, version)
    staging = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    index = os.environ.get(INDEX_VARIABLE)
    options = ["--bin-dir", str(staging), *(["--index", index] if index else [])]
    command = [str(go), "tool", "setup-envtest", "use", f"{release}.x", *options]
    environment = build_environment(GOFLAGS=NO_DWARF_FLAG)  # With the build's flags, Go reuses its standard library.
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
    """Return the directory with the downloaded binaries of this minor version, or None if it is incomplete."""
    candidates = sorted(
        (_get_download_dir(cache, version) / "k8s").glob(f"{_parse_minor_version(version)}.*-{sys.platform}-*")
    )
    complete = [folder for folder in candidates if has_all_programs(folder)]
    return complete[-1] if complete else None


def _get_download_dir(cache: Path, version: str) -> Path:
    """Return the download directory of a minor version; work trees may use different versions concurrently."""
    return cache / f"envtest-{_parse_minor_version(version)}"


def _parse_minor_version(version: str) -> str:
    """Return the minor version, for example 1.37 for v1.37.2."""
    return version.removeprefix("v").rpartition(".")[0]


def find_prebuilt_dir() -> Path | None:
    """Return the directory in KUBEBUILDER_ASSETS, or None if the variable is not set.

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


def get_link_dir(prebuilt_dir: Path, built_dir: Path, cache_dir: Path) -> Path:
    """Return the path of the directory with symbolic links to the prebuilt and the locally built binaries."""
    digest = hashlib.sha256(f"{prebuilt_dir}\0{built_dir}".encode())
    return cache_dir / f"assets-{digest.hexdigest()[:12]}"


def link_prebuilt_and_built_programs(
    prebuilt_dir: Path, built_dir: Path, built_names: tuple[str, ...], link_dir: Path, version: str
) -> None:
    """Create the directory from `get_link_dir`; print a warning if the prebuilt API server has another version.

    Args:
        prebuilt_dir: The directory of the prebuilt binaries.
        built_dir: The directory of the locally built binaries.
        built_names: The names of the locally built binaries.
        link_dir: The directory to create.
        version: The Kubernetes version of the locally built binaries.
    """
    staging = link_dir.with_name(f"{link_dir.name}.new-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for source, programs in ((prebuilt_dir, PROGRAMS), (built_dir, built_names)):
        for name in programs:
            (staging / name).symlink_to(source / name)
    staging.rename(link_dir)
    print(f"using {', '.join(PROGRAMS)} from {prebuilt_dir}", flush=True)
    prebuilt_version = _read_apiserver_version(prebuilt_dir / "kube-apiserver") or "of unknown version"
    if prebuilt_version != version:
        print(f"warning: kube-apiserver is {prebuilt_version}, but {', '.join(built_names)} are {version}", flush=True)


def _read_apiserver_version(apiserver: Path) -> str:
    """Return the version of an API server binary, such as v1.37.2; "" if it prints none."""
    done = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().rpartition(" ")[2] if done.returncode == 0 else ""
