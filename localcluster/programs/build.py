"""Builds the servers from the Go module files of `localcluster`, once, into a cache outside the work tree."""

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
from localcluster.trouble import LocalClusterError

MODULES = Path(__file__).parents[1]
"""The folder with a folder for each module."""
KUBERNETES_VERSION = "v1.36.3"
# Without these the server reports a version that cannot be parsed, and clients refuse it.
LDFLAGS = " ".join(
    f"-X {package}/version.gitVersion={KUBERNETES_VERSION}"
    for package in ("k8s.io/component-base", "k8s.io/client-go/pkg")
)
FLAGS = ("-mod=readonly", "-buildvcs=false", go_install.NO_DEBUG_INFORMATION, "-ldflags", f"-s -w {LDFLAGS}")


@dataclass(frozen=True)
class Toolset:
    """What is built together and needed together.

    Attributes:
        title: what the progress calls it.
        modules: folders of `MODULES` with a go.mod whose tool lines name the programs.
        programs: the files that must be there after the build.
        packages: the Go packages to build, each in the module whose tool lines name it; all that they name if empty.
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
"""What is still built where the other programs come ready-made."""
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
"""Has the controller's name, and so a folder of its own."""
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
"""What real nodes run besides the programs of the distribution's packages."""
RENAMED = {"server": "etcd"}  # etcd's root package builds a program of its module's name


def cache() -> Path:
    """Give the folder for what is built once and shared by all work trees of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodemaintenance"


def target(tools: Toolset = KUBERNETES) -> Path:
    """Return the folder where a toolset's programs belong; its name changes with any of its module files.

    The folder of Kubernetes holds links where some of its programs come ready-made.
    """
    given = _ready_made() if tools is KUBERNETES else None
    return assets.joined(given, _controllers(), cache()) if given else _own(tools)


def _ready_made() -> Path | None:
    """Return the folder of ready-made programs of Kubernetes: KUBEBUILDER_ASSETS or, if none are built, a download."""
    given = assets.folder()
    return given if given or _own(KUBERNETES).is_dir() else envtest.downloaded(cache(), KUBERNETES_VERSION)


def _own(tools: Toolset) -> Path:
    """Give the folder of what is built here."""
    digest = hashlib.sha256("\0".join((*FLAGS, sys.platform, platform.machine(), *tools.packages)).encode())
    for module in tools.modules:
        for name in ("go.mod", "go.sum"):
            digest.update((MODULES / module / name).read_bytes())
    return cache() / f"bin-{digest.hexdigest()[:12]}"


def _controllers() -> Path:
    """Give the folder that has, or will have, the programs of CONTROLLERS: all are there where all was built once."""
    whole = _own(KUBERNETES)
    return whole if whole.is_dir() else _own(CONTROLLERS)


def servers(tools: Toolset = KUBERNETES) -> Path:
    """Return the folder with all programs of a toolset; build what is missing.

    Errors: LocalClusterError when something cannot be built, or KUBEBUILDER_ASSETS names a folder that lacks some.
    """
    build_all([tools])
    return target(tools)


def build_all(toolsets: Iterable[Toolset]) -> None:
    """Build what is missing of all these toolsets; the sources are downloaded side by side.

    Errors: as of `servers`.
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
    """Return the toolset to build: of Kubernetes only a part if the other programs come ready-made."""
    return CONTROLLERS if tools is KUBERNETES and _ready_made() else tools


def _built(tools: Toolset) -> Path:
    """Return the folder that gets the programs of such a toolset."""
    return _controllers() if tools is CONTROLLERS else _own(tools)


def module_folder(module: str, path: str) -> Path:
    """Give the folder of a Go module's files, as they were fetched to build the programs of our module `module`."""
    return download_module(path, MODULES / module)


def download_module(path: str, where: Path, **more: str) -> Path:
    """Download a Go module by a go command in the folder `where`; return the folder of its files.

    In: further environment variables of the command. Errors: LocalClusterError with go's reason.
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
    """Let one builder of this in at a time; the lock, a file of the cache, ends with its process.

    Raises `LocalClusterError` where nothing can be written into the cache.
    """
    with _opened(cache() / lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is building {what}; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _opened(lock: Path) -> IO[str]:
    """Open a file of the cache, which is made where it is not there yet."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return lock.open("w")
    except OSError as error:
        remedy = "XDG_CACHE_HOME names another place for what is built"
        raise LocalClusterError(f"{lock.parent} cannot be written to: {error.strerror}; {remedy}") from None


def _build(missing: Mapping[Path, Toolset]) -> None:
    """Build toolsets into fresh folders, and give each its name, which is the key, when all are whole."""
    if not missing:
        return
    go = toolchain.go(cache())
    for left in cache().glob("bin-*.new-*"):  # a builder was killed; its go may still write there, so take another name
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
    """Give a folder its name if it has all programs of a toolset."""
    for name, better in RENAMED.items():
        if better in tools.programs:
            (fresh / name).rename(fresh / better)
    missing = [name for name in tools.programs if not (fresh / name).is_file()]
    if missing:
        raise LocalClusterError(f"the build left out {', '.join(missing)}: see the tool lines of go.mod")
    fresh.rename(folder)


def _packages(module: str, tools: Toolset) -> tuple[str, ...]:
    """Return what is built of one module; `tool` is Go's word for all that its tool lines name."""
    words = (MODULES / module / "go.mod").read_text().split()
    return tuple(package for package in tools.packages if package in words) or ("tool",)
