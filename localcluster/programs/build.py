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
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localcluster.programs import assets, toolchain
from localcluster.trouble import LocalClusterError

MODULES = Path(__file__).parents[1]
"""The folder with a folder for each module."""
KUBERNETES_VERSION = "v1.36.3"
# Without these the server reports a version that nobody can parse, and clients refuse it.
LDFLAGS = " ".join(
    f"-X {package}/version.gitVersion={KUBERNETES_VERSION}"
    for package in ("k8s.io/component-base", "k8s.io/client-go/pkg")
)
FLAGS = ("-mod=readonly", "-buildvcs=false", "-v", "-ldflags", f"-s -w {LDFLAGS}")


@dataclass(frozen=True)
class Toolset:
    """What is built together and needed together.

    Attributes:
        modules: folders of `MODULES` with a go.mod whose tool lines name the programs.
        programs: the files that must be there after the build.
        packages: the Go packages to build, each in the module whose tool lines name it; all that they name if empty.
    """

    modules: tuple[str, ...]
    programs: tuple[str, ...]
    packages: tuple[str, ...] = ()


_CONTROLLERS = (
    *("k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "sigs.k8s.io/kwok/cmd/kwok",
)
KUBERNETES = Toolset(
    ("etcd", "kubernetes"),
    ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"),
    (
        *("go.etcd.io/etcd/server/v3", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kubectl"),
        *_CONTROLLERS,
    ),
)
CONTROLLERS = Toolset(("kubernetes",), ("kube-controller-manager", "kube-scheduler", "kwok"), _CONTROLLERS)
"""What is still built where KUBEBUILDER_ASSETS brings the rest."""
KNATIVE = Toolset(
    ("knative",),
    (
        *("apiserver_receive_adapter", "channel_controller", "channel_dispatcher", "controller", "filter"),
        *("ingress", "mtchannel_broker", "mtping", "webhook"),
    ),
)
SERVING = Toolset(("serving",), ("webhook",))
_RABBITMQ, _ADAPTERS = "knative.dev/eventing-rabbitmq/cmd", "knative.dev/eventing/cmd"
RABBITMQ = Toolset(
    ("rabbitmq",),
    ("apiserver_receive_adapter", "dispatcher", "ingress", "mtping"),
    (
        *(f"{_RABBITMQ}/dispatcher", f"{_RABBITMQ}/ingress"),
        *(f"{_ADAPTERS}/apiserver_receive_adapter", f"{_ADAPTERS}/mtping"),
    ),
)
RABBITMQ_CONTROLLER = Toolset(("rabbitmq",), ("broker",), (f"{_RABBITMQ}/controller/broker",))
RABBITMQ_WEBHOOK = Toolset(("rabbitmq",), ("broker",), (f"{_RABBITMQ}/webhook/broker",))
"""Of the same name as the controller, and so in a folder of its own."""
RABBITMQ_OPERATORS = Toolset(("rabbitmq_operators",), ("cluster-operator", "messaging-topology-operator"))
KUBEVIRT = Toolset(("kubevirt",), ("virt-api", "virt-controller"))
NODES = Toolset(
    ("kubernetes", "coredns"),
    ("kubelet", "kube-proxy", "coredns"),
    ("k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-proxy", "github.com/coredns/coredns"),
)
"""What real nodes run, beside what the distribution's packages bring."""
RENAMED = {"server": "etcd"}  # etcd's root package builds a program of its module's name
QUIET_REPORT_SECONDS = 10


def cache() -> Path:
    """Give the folder for what is built once and shared by all work trees of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodemaintenance"


def target(tools: Toolset = KUBERNETES) -> Path:
    """Give the folder where a toolset's programs belong; its name changes with any of its module files.

    Where KUBEBUILDER_ASSETS is set, that of Kubernetes holds links to those programs and to ours.
    """
    given = assets.folder() if tools is KUBERNETES else None
    return assets.joined(given, _controllers(), cache()) if given else _own(tools)


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
    """Give the folder with all programs of a toolset, building them first if need be.

    Errors: LocalClusterError when something cannot be built, or KUBEBUILDER_ASSETS names a folder that lacks some.
    """
    folder = target(tools)
    if not folder.is_dir():
        with alone("the servers"):
            _provide(folder, tools)
    return folder


def _provide(folder: Path, tools: Toolset) -> None:
    """Build what is missing, unless another builder just did."""
    given = assets.folder() if tools is KUBERNETES else None
    built, tools = (_controllers(), CONTROLLERS) if given else (folder, tools)
    if not built.is_dir():
        _build(built, tools)
    if given and not folder.is_dir():
        assets.join(given, built, tools.programs, folder, KUBERNETES_VERSION)


def module_folder(module: str, path: str) -> Path:
    """Give the folder of a Go module's files, as they were fetched to build the programs of our module `module`."""
    command = [str(toolchain.go(cache())), "mod", "download", "-json", path]
    done = subprocess.run(
        command, cwd=MODULES / module, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LocalClusterError(f"the files of {path} are not to be had: {done.stderr.strip() or done.stdout.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off", **more}


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


def _build(folder: Path, tools: Toolset) -> None:
    """Install the tools of every module into a fresh folder, and give it its name when it is whole."""
    go = toolchain.go(cache())
    for left in cache().glob("bin-*.new-*"):  # a builder was killed; its go may still write there, so take another name
        shutil.rmtree(left, ignore_errors=True)
    fresh = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    started = time.monotonic()
    for module in tools.modules:
        _install(go, MODULES / module, fresh, _packages(module, tools))
    for name, better in RENAMED.items():
        if better in tools.programs:
            (fresh / name).rename(fresh / better)
    missing = [name for name in tools.programs if not (fresh / name).is_file()]
    if missing:
        raise LocalClusterError(f"the build left out {', '.join(missing)}: see the tool lines of go.mod")
    fresh.rename(folder)
    print(f"built {', '.join(tools.modules)} in {time.monotonic() - started:.0f} s: {folder}", flush=True)


def _packages(module: str, tools: Toolset) -> tuple[str, ...]:
    """Give what is built of one module; `tool` is Go's word for all that its tool lines name."""
    words = (MODULES / module / "go.mod").read_text().split()
    return tuple(package for package in tools.packages if package in words) or ("tool",)


def _install(go: Path, module: Path, bin_folder: Path, packages: tuple[str, ...]) -> None:
    """Run `go install` in one module's folder, showing that it lives."""
    environment = _environment(GOBIN=str(bin_folder))
    command = [str(go), "install", *FLAGS, *packages]
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    progress = _Progress(module.name)
    with (
        progress.shown(),
        subprocess.Popen(command, cwd=module, env=environment, stdout=quiet, stderr=pipe, text=True) as building,
    ):
        try:
            for line in building.stderr or ():
                progress.take(line.rstrip())
        except BaseException:
            building.kill()
            raise
    failed = building.returncode
    if failed:
        tail = "\n  ".join(progress.tail)
        raise LocalClusterError(f"building {module.name} failed ({' '.join(command[:3])} …, exit {failed}):\n  {tail}")


class _Progress:
    """Counts what go reports; a spinner on a terminal, a line now and then in a log."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.downloaded = self.compiled = 0
        self.tail: deque[str] = deque(maxlen=20)
        self.started = time.monotonic()

    def take(self, line: str) -> None:
        """Count one line of go's output; what is neither a download nor a package may tell why it failed."""
        if line.startswith("go: downloading "):
            self.downloaded += 1
        elif " " not in line and "/" in line:
            self.compiled += 1
        else:
            self.tail.append(line)

    def text(self) -> str:
        """Say how far it is."""
        seconds = time.monotonic() - self.started
        return (
            f"building {self.module}: {seconds:.0f} s, "
            f"{self.downloaded} modules downloaded, {self.compiled} packages compiled"
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress while the block runs."""
        from rich.console import Console  # mostly everything is built

        console = Console()
        done = threading.Event()
        if not console.is_terminal:
            print(f"{self.text()} (the first time this takes some minutes)", flush=True)
        with console.status(self.text()) as status:

            def report() -> None:
                while not done.wait(0.5 if console.is_terminal else QUIET_REPORT_SECONDS):
                    if console.is_terminal:
                        status.update(self.text())
                    else:
                        print(self.text(), flush=True)

            reporter = threading.Thread(target=report, daemon=True)
            reporter.start()
            try:
                yield
            finally:
                done.set()
                reporter.join()
