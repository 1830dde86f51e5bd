"""Builds the servers once from the Go modules in `localcluster`, into a cache directory outside of the work tree."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localcluster.errors import LocalClusterError
from localcluster.programs import envtest, go_install

MODULES_DIR = Path(__file__).parents[1]
"""The directory that contains one subdirectory per Go module."""
KUBERNETES_VERSION = "v1.37.2"
# Without these flags, the servers report a version that clients cannot parse and reject.
LDFLAGS = " ".join(
    f"-X {package}/version.gitVersion={KUBERNETES_VERSION}"
    for package in ("k8s.io/component-base", "k8s.io/client-go/pkg")
)
BUILD_FLAGS = ("-mod=readonly", "-buildvcs=false", go_install.NO_DWARF_FLAG, "-ldflags", f"-s -w {LDFLAGS}")


@dataclass(frozen=True)
class Toolset:
    """A set of binaries that are built and used together.

    Attributes:
        title: The toolset's name in the progress output.
        modules: Directories in `MODULES_DIR`; the tool lines of their go.mod list the Go packages.
        programs: The file names of the binaries that the build must produce.
        packages: The Go packages to build, each in the module whose tool lines list it; if empty, all packages.
        flags: Additional flags of `go install`.
    """

    title: str
    modules: tuple[str, ...]
    programs: tuple[str, ...]
    packages: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


_CONTROLLERS = (
    *("k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "sigs.k8s.io/kwok/cmd/kwok",
)
_KUBERNETES = f"Kubernetes {KUBERNETES_VERSION[1:]}"
KUBERNETES = Toolset(
    _KUBERNETES,
    ("kubernetes",),
    ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"),
    (
        *("go.etcd.io/etcd/server/v3", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kubectl"),
        *_CONTROLLERS,
    ),
)
CONTROLLERS = Toolset(_KUBERNETES, ("kubernetes",), ("kube-controller-manager", "kube-scheduler", "kwok"), _CONTROLLERS)
"""The Kubernetes binaries that are built locally even if the other binaries are prebuilt."""
KNATIVE = Toolset(
    "Knative Eventing",
    ("knative",),
    (
        *("apiserver_receive_adapter", "channel_controller", "channel_dispatcher", "controller", "filter"),
        *("ingress", "mtchannel_broker", "mtping", "webhook"),
    ),
)
SERVING = Toolset("Knative Serving", ("serving",), ("activator", "autoscaler", "controller", "queue", "webhook"))
TRAEFIK = Toolset("Traefik", ("traefik",), ("traefik",))
REGISTRY = Toolset("the image registry", ("registry",), ("registry",))
KN = Toolset("kn", ("kn",), ("kn",))
HELM = Toolset("Helm", ("helm",), ("helm",))
KREW = Toolset("krew", ("krew",), ("krew", "validate-krew-manifest"))
_RABBITMQ, _ADAPTERS = "knative.dev/eventing-rabbitmq/cmd", "knative.dev/eventing/cmd"
RABBITMQ = Toolset(
    "RabbitMQ Broker",
    ("rabbitmq",),
    ("apiserver_receive_adapter", "dispatcher", "ingress", "mtping"),
    (
        *(f"{_RABBITMQ}/dispatcher", f"{_RABBITMQ}/ingress"),
        *(f"{_ADAPTERS}/apiserver_receive_adapter", f"{_ADAPTERS}/mtping"),
    ),
)
RABBITMQ_CONTROLLER = Toolset(
    "RabbitMQ Broker's controller", ("rabbitmq",), ("broker",), (f"{_RABBITMQ}/controller/broker",)
)
RABBITMQ_WEBHOOK = Toolset("RabbitMQ Broker's webhook", ("rabbitmq",), ("broker",), (f"{_RABBITMQ}/webhook/broker",))
"""The webhook's binary has the same name as the controller's, so it needs a separate toolset."""
RABBITMQ_OPERATORS = Toolset(
    "RabbitMQ's operators", ("rabbitmq_operators",), ("cluster-operator", "messaging-topology-operator")
)
KUBEVIRT = Toolset("KubeVirt", ("kubevirt",), ("virt-api", "virt-controller"))
# By default, opm verifies the signatures of pulled images with GnuPG's C library; this tag selects a Go implementation.
OLM = Toolset("OLM's validators", ("olm",), ("operator-verify", "opm"), flags=("-tags", "containers_image_openpgp"))
ACTIONLINT = Toolset("actionlint", ("actionlint",), ("actionlint",))
NODES = Toolset(
    "kubelet, kube-proxy and CoreDNS",
    ("kubernetes", "coredns"),
    ("kubelet", "kube-proxy", "coredns"),
    ("k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-proxy", "github.com/coredns/coredns"),
)
"""The binaries of real nodes for which the distribution has no packages."""
PROGRAM_NAMES = {"server": "etcd"}  # Go names etcd's binary after its module, go.etcd.io/etcd/server


def get_cache_dir() -> Path:
    """Return the cache directory, which all work trees of a user share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodemaintenance"


def get_target_dir(toolset: Toolset = KUBERNETES) -> Path:
    """Return the directory of a toolset's binaries; a digest of the module files and flags is part of its name.

    For Kubernetes, this is a directory of symbolic links if some of the binaries are prebuilt.
    """
    prebuilt = _find_prebuilt() if toolset is KUBERNETES else None
    return (
        envtest.get_link_dir(prebuilt, _get_controllers_dir(), get_cache_dir()) if prebuilt else _get_build_dir(toolset)
    )


def _find_prebuilt() -> Path | None:
    """Return the directory of prebuilt Kubernetes binaries, or None if there is none or locally built ones exist.

    KUBEBUILDER_ASSETS takes precedence. If this variable is not set, the function returns the directory of an earlier
    download, unless all Kubernetes binaries were already built locally.
    """
    directory = envtest.find_prebuilt_dir()
    return (
        directory
        if directory or _get_build_dir(KUBERNETES).is_dir()
        else envtest.find_downloaded(get_cache_dir(), KUBERNETES_VERSION)
    )


def _get_build_dir(toolset: Toolset) -> Path:
    """Return the directory of a toolset's locally built binaries."""
    digest = hashlib.sha256(
        "\0".join((*BUILD_FLAGS, sys.platform, platform.machine(), *toolset.packages, *toolset.flags)).encode()
    )
    for module in toolset.modules:
        for name in ("go.mod", "go.sum"):
            digest.update((MODULES_DIR / module / name).read_bytes())
    return get_cache_dir() / f"bin-{digest.hexdigest()[:12]}"


def _get_controllers_dir() -> Path:
    """Return a directory with the `CONTROLLERS` binaries: the directory of all Kubernetes binaries, if it exists."""
    directory = _get_build_dir(KUBERNETES)
    return directory if directory.is_dir() else _get_build_dir(CONTROLLERS)


def ensure_programs(toolset: Toolset = KUBERNETES) -> Path:
    """Build the missing binaries of a toolset; return the directory that contains all of its binaries.

    Raises `LocalClusterError` if a build fails, or if the directory KUBEBUILDER_ASSETS lacks a binary.
    """
    build_all([toolset])
    return get_target_dir(toolset)


def build_all(toolsets: Iterable[Toolset]) -> None:
    """Build the missing binaries of all these toolsets; the sources are downloaded concurrently.

    Raises `LocalClusterError`, as `ensure_programs` does.
    """
    requested = tuple(toolsets)
    if all(get_target_dir(tools).is_dir() for tools in requested):
        return
    with hold_build_lock("the servers"):
        if KUBERNETES in requested and not get_target_dir().is_dir() and not envtest.find_prebuilt_dir():
            envtest.download(go_install.ensure_go(get_cache_dir()), get_cache_dir(), KUBERNETES_VERSION)
        _build_toolsets(
            {
                _get_output_dir(tools): tools
                for tools in map(_select_toolset, requested)
                if not _get_output_dir(tools).is_dir()
            }
        )
        prebuilt = _find_prebuilt()
        if KUBERNETES in requested and prebuilt and not get_target_dir().is_dir():
            envtest.link_prebuilt_and_built_programs(
                prebuilt, _get_controllers_dir(), CONTROLLERS.programs, get_target_dir(), KUBERNETES_VERSION
            )


def _select_toolset(toolset: Toolset) -> Toolset:
    """Return the toolset to build: for Kubernetes, only `CONTROLLERS` if the other binaries are prebuilt."""
    return CONTROLLERS if toolset is KUBERNETES and _find_prebuilt() else toolset


def _get_output_dir(toolset: Toolset) -> Path:
    """Return the directory into which a toolset from `_select_toolset` is built."""
    return _get_controllers_dir() if toolset is CONTROLLERS else _get_build_dir(toolset)


def download_program_module(module: str, module_path: str) -> Path:
    """Download a Go module in the version that `localcluster/MODULE/go.mod` requires; return its directory."""
    return download_module(module_path, MODULES_DIR / module)


def download_module(path: str, working_dir: Path, **variables: str) -> Path:
    """Download a Go module with `go mod download`, executed in `working_dir`; return the module's directory.

    The keyword arguments are environment variables of the go command. Raises `LocalClusterError`, which quotes go's
    error output.
    """
    command = [str(go_install.ensure_go(get_cache_dir())), "mod", "download", "-json", path]
    environment = go_install.build_environment(**variables)
    done = subprocess.run(command, cwd=working_dir, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip()
        raise LocalClusterError(f"cannot download Go module {path}: {reason}\n{go_install.OFFLINE_HINT}")
    return Path(json.loads(done.stdout)["Dir"])


@contextmanager
def hold_build_lock(title: str, lock_name: str = "build.lock") -> Iterator[None]:
    """Hold a lock file in the cache, so that only one process builds `title`; a killed process releases the lock.

    Raises `LocalClusterError` if the cache is not writable.
    """
    with _open_lock_file(get_cache_dir() / lock_name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is building {title}; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open_lock_file(lock: Path) -> IO[str]:
    """Open a file in the cache for writing; create the file and the cache directory if they do not exist."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return lock.open("w")
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to another directory"
        raise LocalClusterError(f"cannot write to directory {lock.parent}: {error.strerror}: {remedy}") from None


def _build_toolsets(missing_toolsets: Mapping[Path, Toolset]) -> None:
    """Build the toolsets into temporary directories; rename the directories when all builds are complete."""
    if not missing_toolsets:
        return
    go = go_install.ensure_go(get_cache_dir())
    # A killed build's go process may still write to the build's directory, so each build uses a new directory name.
    for leftover in get_cache_dir().glob("bin-*.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    started = time.monotonic()
    staging_dirs = {folder: folder.with_name(f"{folder.name}.new-{os.getpid()}") for folder in missing_toolsets}
    installs = [
        go_install.Install(
            MODULES_DIR / module, _list_packages(module, tools), staging_dirs[folder], (*BUILD_FLAGS, *tools.flags)
        )
        for folder, tools in missing_toolsets.items()
        for module in tools.modules
    ]
    title = ", ".join(dict.fromkeys(tools.title for tools in missing_toolsets.values()))
    go_install.install(go, installs, title, sum(len(tools.programs) for tools in missing_toolsets.values()))
    for folder, tools in missing_toolsets.items():
        _rename_to_final_directory(staging_dirs[folder], folder, tools)
    print(f"built {title} in {time.monotonic() - started:.0f} s", flush=True)


def _rename_to_final_directory(staging: Path, directory: Path, toolset: Toolset) -> None:
    """Rename a build directory to its final name. Raises `LocalClusterError` if the build lacks one of the binaries."""
    for built_name, name in PROGRAM_NAMES.items():
        if name in toolset.programs:
            (staging / built_name).rename(staging / name)
    missing = [name for name in toolset.programs if not (staging / name).is_file()]
    if missing:
        raise LocalClusterError(
            f"the build of {toolset.title} did not produce {', '.join(missing)}: check the tool lines of go.mod"
        )
    staging.rename(directory)


def _list_packages(module: str, toolset: Toolset) -> tuple[str, ...]:
    """Return the toolset's packages in this module, or `tool`, Go's name for all packages in the tool lines."""
    tokens = (MODULES_DIR / module / "go.mod").read_text().split()
    return tuple(package for package in toolset.packages if package in tokens) or ("tool",)
