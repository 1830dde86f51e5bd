"""Builds the servers from the Go module files of `localcluster` once, into a cache outside the work tree."""

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

from localcluster.programs import assets, envtest, go_install, toolchain
from localcluster.errors import LocalClusterError

MODULES = Path(__file__).parents[1]
"""The directory with one subdirectory per Go module."""
KUBERNETES_VERSION = "v1.36.3"
# Without these the server reports a version that cannot be parsed, and clients reject it.
LDFLAGS = " ".join(
    f"-X {package}/version.gitVersion={KUBERNETES_VERSION}"
    for package in ("k8s.io/component-base", "k8s.io/client-go/pkg")
)
FLAGS = ("-mod=readonly", "-buildvcs=false", go_install.NO_DEBUG_INFORMATION, "-ldflags", f"-s -w {LDFLAGS}")


@dataclass(frozen=True)
class Toolset:
    """Programs that are built and needed together.

    Attributes:
        title: The name in the progress output.
        modules: Directories in `MODULES` with a go.mod whose tool lines name the programs.
        programs: The files that the build must produce.
        packages: The Go packages to build, each in the module whose tool lines name it; if empty, all of them.
    """

    title: str
    modules: tuple[str, ...]
    programs: tuple[str, ...]
    packages: tuple[str, ...] = ()


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
"""The programs that are built even if the others are prebuilt."""
KNATIVE = Toolset(
    "Knative Eventing",
    ("knative",),
    (
        *("apiserver_receive_adapter", "channel_controller", "channel_dispatcher", "controller", "filter"),
        *("ingress", "mtchannel_broker", "mtping", "webhook"),
    ),
)
SERVING = Toolset("Knative Serving", ("serving",), ("webhook",))
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
"""A toolset of its own, since the program has the same name as the controller's."""
RABBITMQ_OPERATORS = Toolset(
    "RabbitMQ's operators", ("rabbitmq_operators",), ("cluster-operator", "messaging-topology-operator")
)
KUBEVIRT = Toolset("KubeVirt", ("kubevirt",), ("virt-api", "virt-controller"))
NODES = Toolset(
    "kubelet, kube-proxy and CoreDNS",
    ("kubernetes", "coredns"),
    ("kubelet", "kube-proxy", "coredns"),
    ("k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-proxy", "github.com/coredns/coredns"),
)
"""The programs of real nodes that the distribution's packages do not provide."""
RENAMED = {"server": "etcd"}  # etcd's root package builds a program with the name of its module


def cache() -> Path:
    """Return the cache directory, which all work trees of this user share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodemaintenance"


def target(tools: Toolset = KUBERNETES) -> Path:
    """Return the directory of a toolset's programs; its name depends on the content of the module files.

    For Kubernetes it is a directory of links if some of the programs are prebuilt.
    """
    given = _ready_made() if tools is KUBERNETES else None
    return assets.joined(given, _controllers(), cache()) if given else _own(tools)


def _ready_made() -> Path | None:
    """Return the directory of prebuilt Kubernetes binaries, or None.

    That is KUBEBUILDER_ASSETS or, unless Kubernetes was already built here, an earlier download.
    """
    given = assets.folder()
    return given if given or _own(KUBERNETES).is_dir() else envtest.downloaded(cache(), KUBERNETES_VERSION)


def _own(tools: Toolset) -> Path:
    """Return the directory of a toolset's locally built programs."""
    digest = hashlib.sha256("\0".join((*FLAGS, sys.platform, platform.machine(), *tools.packages)).encode())
    for module in tools.modules:
        for name in ("go.mod", "go.sum"):
            digest.update((MODULES / module / name).read_bytes())
    return cache() / f"bin-{digest.hexdigest()[:12]}"


def _controllers() -> Path:
    """Return the directory of the `CONTROLLERS` programs: that of all Kubernetes programs if built, else their own."""
    whole = _own(KUBERNETES)
    return whole if whole.is_dir() else _own(CONTROLLERS)


def servers(tools: Toolset = KUBERNETES) -> Path:
    """Return the directory with all programs of a toolset; build those that are missing.

    Raises `LocalClusterError` if a build fails, or if KUBEBUILDER_ASSETS names a directory that lacks a program.
    """
    build_all([tools])
    return target(tools)


def build_all(toolsets: Iterable[Toolset]) -> None:
    """Build the missing programs of all these toolsets; the sources are downloaded concurrently.

    Raises `LocalClusterError`, as `servers` does.
    """
    wanted = tuple(toolsets)
    if all(target(tools).is_dir() for tools in wanted):
        return
    with alone("the servers"):
        if KUBERNETES in wanted and not target().is_dir() and not assets.folder():
            envtest.download(toolchain.go(cache()), cache(), KUBERNETES_VERSION)
        _build({_built(tools): tools for tools in map(_to_build, wanted) if not _built(tools).is_dir()})
        given = _ready_made()
        if KUBERNETES in wanted and given and not target().is_dir():
            assets.join(given, _controllers(), CONTROLLERS.programs, target(), KUBERNETES_VERSION)


def _to_build(tools: Toolset) -> Toolset:
    """Return the toolset to build; for Kubernetes only `CONTROLLERS` if the other programs are prebuilt."""
    return CONTROLLERS if tools is KUBERNETES and _ready_made() else tools


def _built(tools: Toolset) -> Path:
    """Return the directory into which a toolset from `_to_build` is built."""
    return _controllers() if tools is CONTROLLERS else _own(tools)


def module_folder(module: str, path: str) -> Path:
    """Return the files of a Go module that the programs of the project's module `module` are built from."""
    return download_module(path, MODULES / module)


def download_module(path: str, where: Path, **more: str) -> Path:
    """Download a Go module with a go command that runs in `where`; return the directory of its files.

    Further keyword arguments are environment variables of the command. Raises `LocalClusterError` with go's reason.
    """
    command = [str(toolchain.go(cache())), "mod", "download", "-json", path]
    environment = go_install.environment(**more)
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip() or done.stdout.strip()
        raise LocalClusterError(f"{path} cannot be downloaded: {why}\n{go_install.OFFLINE}")
    return Path(json.loads(done.stdout)["Dir"])


@contextmanager
def alone(what: str, lock: str = "build.lock") -> Iterator[None]:
    """Hold a lock so that only one process builds `what`; the lock is a file in the cache and ends with its process.

    Raises `LocalClusterError` if the cache is not writable.
    """
    with _opened(cache() / lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is building {what}; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _opened(lock: Path) -> IO[str]:
    """Open a file in the cache; create it and its directory if needed."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return lock.open("w")
    except OSError as error:
        remedy = "XDG_CACHE_HOME names another place for what is built"
        raise LocalClusterError(f"{lock.parent} cannot be written to: {error.strerror}; {remedy}") from None


def _build(missing: Mapping[Path, Toolset]) -> None:
    """Build toolsets into temporary directories, and rename these to their final names when all are complete."""
    if not missing:
        return
    go = toolchain.go(cache())
    for left in cache().glob("bin-*.new-*"):  # a killed builder's go may still write there, so use another name
        shutil.rmtree(left, ignore_errors=True)
    started = time.monotonic()
    fresh = {folder: folder.with_name(f"{folder.name}.new-{os.getpid()}") for folder in missing}
    installs = [
        go_install.Install(MODULES / module, _packages(module, tools), fresh[folder], FLAGS)
        for folder, tools in missing.items()
        for module in tools.modules
    ]
    title = ", ".join(dict.fromkeys(tools.title for tools in missing.values()))
    go_install.install(go, installs, title, sum(len(tools.programs) for tools in missing.values()))
    for folder, tools in missing.items():
        _finish(fresh[folder], folder, tools)
    print(f"built {title} in {time.monotonic() - started:.0f} s", flush=True)


def _finish(fresh: Path, folder: Path, tools: Toolset) -> None:
    """Rename a build directory to its final name if it has all programs of the toolset."""
    for name, better in RENAMED.items():
        if better in tools.programs:
            (fresh / name).rename(fresh / better)
    missing = [name for name in tools.programs if not (fresh / name).is_file()]
    if missing:
        raise LocalClusterError(f"the build left out {', '.join(missing)}: see the tool lines of go.mod")
    fresh.rename(folder)


def _packages(module: str, tools: Toolset) -> tuple[str, ...]:
    """Return the packages to build in a module; `tool` is Go's name for all packages in its tool lines."""
    words = (MODULES / module / "go.mod").read_text().split()
    return tuple(package for package in tools.packages if package in words) or ("tool",)
