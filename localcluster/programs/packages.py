"""Finds the programs that a make target requires, and installs the packages of missing programs.

`python3 -m localcluster.programs.packages TARGET...` runs before the virtual environment exists, so this module must
not import third-party packages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.nodes import preflight

OS_RELEASE_FILE = Path("/etc/os-release")
VENV_STAMP = Path(".venv/.stamp")
SBIN_PATTERNS = ("/usr/sbin/{}", "/usr/local/sbin/{}")
CNI_PATTERNS = ("/usr/lib/cni/{}", "/opt/cni/bin/{}", "/usr/libexec/cni/{}")
RABBITMQ_PATTERNS = ("/usr/lib/rabbitmq/bin/{}", "/usr/local/lib/rabbitmq/bin/{}", "/opt/rabbitmq/sbin/{}")
CA_BUNDLES = (
    *("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"),
    *("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem"),
)
"""Files in which Go searches for trusted CA certificates; if all are missing, Go cannot download anything."""
APT_COMMAND = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")


@dataclass(frozen=True)
class Program:
    """A program that a distribution package provides.

    Attributes:
        name: The program's file name on PATH.
        package: The Debian package that contains the program.
        purposes: The make targets that need the program; for `make up`, `make bench` and `make chaos`, the engines.
        path_patterns: Glob patterns of paths outside of PATH.
        ubuntu_package: The Ubuntu package, if its name differs.
    """

    name: str
    package: str
    purposes: frozenset[str]
    path_patterns: tuple[str, ...] = ()
    ubuntu_package: str = ""

    def find(self) -> Path | None:
        """Return the path of the program, or None if it is not installed."""
        paths = [
            path for pattern in self.path_patterns for path in sorted(Path("/").glob(pattern.format(self.name)[1:]))
        ]
        on_path = shutil.which(self.name)
        return Path(on_path) if on_path else next(reversed(paths), None)


TEST_TARGETS = frozenset({"test", "test-all"})
BROWSER_TARGETS = TEST_TARGETS | {"e2e", "screenshots"}
IMAGE_TARGETS = frozenset({"demo-real", "e2e-real", "e2e-installs"})
"""The make targets that build and run the product's image."""
REAL_NODE_TARGETS = frozenset({"real"}) | IMAGE_TARGETS
"""The purposes that need real nodes: `make up REAL=...`, and the targets in `IMAGE_TARGETS`."""
PROGRAMS = (
    Program("chromium", "chromium", BROWSER_TARGETS, ("/snap/bin/{}",), ubuntu_package="chromium-browser"),
    Program("chromedriver", "chromium-driver", BROWSER_TARGETS, ubuntu_package="chromium-chromedriver"),
    Program("initdb", "postgresql", TEST_TARGETS | {"e2e", "e2e-real"}, ("/usr/lib/postgresql/*/bin/{}",)),
    Program("promtool", "prometheus", TEST_TARGETS),
    Program("nginx", "nginx-light", frozenset({"e2e", "e2e-real", "e2e-installs", "knative"}), SBIN_PATTERNS),
    Program("buildah", "buildah", IMAGE_TARGETS),
    Program("debootstrap", "debootstrap", IMAGE_TARGETS, SBIN_PATTERNS),
    Program("containerd", "containerd", REAL_NODE_TARGETS, SBIN_PATTERNS),
    Program("runc", "runc", REAL_NODE_TARGETS, SBIN_PATTERNS),
    Program("host-local", "containernetworking-plugins", REAL_NODE_TARGETS, CNI_PATTERNS),
    Program("iptables", "iptables", REAL_NODE_TARGETS, SBIN_PATTERNS),
    Program("ip", "iproute2", REAL_NODE_TARGETS, SBIN_PATTERNS),
    Program("busybox", "busybox-static", REAL_NODE_TARGETS),
    Program("rabbitmq-server", "rabbitmq-server", frozenset({"e2e", "rabbitmq"}), RABBITMQ_PATTERNS),
)


TARGETS_WITHOUT_BUILD = frozenset({"down", "env", "status", "lint", "deploy", "cluster-functest", "local", "needs"})
"""The make targets that never download with Go, and so need no trusted CAs."""


@dataclass(frozen=True)
class MissingPackage:
    """A missing program or file, and the package that contains it."""

    name: str
    package: str


def find_program(name: str) -> Path:
    """Return the path of a program in `PROGRAMS`. Raises `LocalClusterError` with a remedy if it is not installed."""
    program = next(program for program in PROGRAMS if program.name == name)
    found = program.find()
    if found is None:
        raise LocalClusterError(f"missing: {name}; {format_remedy([_build_missing_package(program)])}")
    return found


def list_missing_packages(purposes: Iterable[str]) -> list[MissingPackage]:
    """Return the packages that these purposes need and this host lacks."""
    requested = set(purposes)
    programs = [
        _build_missing_package(program)
        for program in PROGRAMS
        if requested & program.purposes and program.find() is None
    ]
    ca_bundles = [] if requested <= TARGETS_WITHOUT_BUILD else _list_missing_ca_bundle()
    return [*_list_missing_venv(), *ca_bundles, *programs]


def _build_missing_package(program: Program) -> MissingPackage:
    return MissingPackage(
        program.name, program.ubuntu_package if program.ubuntu_package and _is_ubuntu() else program.package
    )


def _is_ubuntu() -> bool:
    return OS_RELEASE_FILE.is_file() and "ID=ubuntu" in OS_RELEASE_FILE.read_text().splitlines()


def _list_missing_venv() -> list[MissingPackage]:
    """Return the package with Python's module `venv` if the module is missing; Debian packages it separately.

    The module is not needed if `.venv` exists, or if uv is installed and `make UV=` does not disable it.
    """
    if VENV_STAMP.exists() or os.environ.get("UV", shutil.which("uv")):
        return []
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return [MissingPackage(f"the module venv of Python {version}", f"python{version}-venv")]
    return []


def _list_missing_ca_bundle() -> list[MissingPackage]:
    configured = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if sys.platform != "linux" or configured or any(Path(path).exists() for path in CA_BUNDLES):
        return []
    return [MissingPackage("a CA bundle", "ca-certificates")]


def format_remedy(missing_packages: Sequence[MissingPackage]) -> str:
    """Return a sentence that describes how the user can install these packages."""
    packages = " ".join(missing.package for missing in missing_packages)
    if shutil.which("apt-get"):
        return f"run as root: apt-get update && apt-get install -y --no-install-recommends {packages}"
    return f"install it with this system's package manager; Debian's packages are {packages}"


def ensure_installed(purposes: Sequence[str], *, may_install: bool) -> None:
    """Install the packages that these purposes need and this host lacks, if `may_install`.

    Raises `LocalClusterError` with one line that lists the programs which are still missing, and the remedy.
    """
    missing = list_missing_packages(purposes)
    if missing and may_install and shutil.which("apt-get"):
        _install_packages(missing)
        missing = list_missing_packages(purposes)
    if missing:
        names = ", ".join(package.name for package in missing)
        raise LocalClusterError(f"missing: {names}; {format_remedy(missing)}")


def _install_packages(missing_packages: Sequence[MissingPackage]) -> None:
    """Install packages with apt-get, and print one line; print apt-get's own output only if the installation fails."""
    packages = " ".join(missing.package for missing in missing_packages)
    names = ", ".join(missing.name for missing in missing_packages)
    print(f"missing: {names}; installing {packages} with apt-get", flush=True)
    updated = _run_apt("update")  # If this fails, the other package lists may still have the packages.
    done = _run_apt("install", "--no-install-recommends", *packages.split())
    if done.returncode:
        print(updated.stdout, done.stdout, sep="", end="", flush=True)
        raise LocalClusterError(f"apt-get could not install {packages} (exit {done.returncode}): see its output above")


def _run_apt(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    both, pipe = subprocess.STDOUT, subprocess.PIPE
    return subprocess.run([*APT_COMMAND, *arguments], env=environment, stdout=pipe, stderr=both, text=True, check=False)


def main() -> None:
    """Parse the make targets and the engines, and install the packages that they need."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--delivery", default="local", help="the engine of `make up`")
    parser.add_argument(
        "--engines", default="local", help="comma-separated list of the engines of `make bench` and `make chaos`"
    )
    parser.add_argument("--real", default="0", help="the number of real nodes of `make up`")
    arguments = parser.parse_args()
    targets = arguments.targets
    real = ("up" in targets and arguments.real not in ("", "0")) or not IMAGE_TARGETS.isdisjoint(targets)
    engines = {"up": arguments.delivery, "bench": arguments.engines, "chaos": arguments.engines}
    selected = (name.strip() for target in targets for name in engines.get(target, "").split(","))
    purposes = [*targets, *filter(None, selected), *(["real"] if real else [])]
    try:
        if real:
            preflight.check_host()  # This check is first, because installing packages cannot fix a failure.
        ensure_installed(purposes, may_install=os.geteuid() == 0)
        if real:
            preflight.check_host()  # The second check runs the tests that the first check had no programs for.
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
