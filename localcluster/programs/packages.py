"""Finds programs from the distribution's packages, and installs those that a make target needs.

`python3 -m localcluster.programs.packages TARGET...` runs before the virtual environment exists, so the module must not
import third-party packages.
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

from localcluster.nodes import preflight
from localcluster.errors import LocalClusterError

RELEASE = Path("/etc/os-release")
ENVIRONMENT = Path(".venv/.stamp")
SBIN = ("/usr/sbin/{}", "/usr/local/sbin/{}")
CNI = ("/usr/lib/cni/{}", "/opt/cni/bin/{}", "/usr/libexec/cni/{}")
RABBITMQ = ("/usr/lib/rabbitmq/bin/{}", "/usr/local/lib/rabbitmq/bin/{}", "/opt/rabbitmq/sbin/{}")
CERTIFICATES = (
    *("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"),
    *("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem"),
)
"""Files in which Go searches for trusted CAs; without one of them it cannot download anything."""
APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")


@dataclass(frozen=True)
class Program:
    """A program that a distribution package provides.

    Attributes:
        name: The file to search for on PATH.
        package: The Debian package.
        purposes: The make targets that use it; for `make up`, `make bench` and `make chaos`, the engines that use it.
        places: Glob patterns of further locations.
        ubuntu: The Ubuntu package if its name differs.
    """

    name: str
    package: str
    purposes: frozenset[str]
    places: tuple[str, ...] = ()
    ubuntu: str = ""

    def path(self) -> Path | None:
        """Return the path of the program, or None if it is not installed."""
        places = [found for place in self.places for found in sorted(Path("/").glob(place.format(self.name)[1:]))]
        on_path = shutil.which(self.name)
        return Path(on_path) if on_path else next(reversed(places), None)


TESTS = frozenset({"test", "test-all"})
BROWSED = TESTS | {"e2e", "screenshots"}
SHIPPED = frozenset({"demo-real", "e2e-real", "e2e-installs"})
"""The make targets that build and run the product's image."""
REAL = frozenset({"real"}) | SHIPPED
"""Real nodes: `make up REAL=...` and the targets in `SHIPPED`."""
PROGRAMS = (
    Program("chromium", "chromium", BROWSED, ("/snap/bin/{}",), ubuntu="chromium-browser"),
    Program("chromedriver", "chromium-driver", BROWSED, ubuntu="chromium-chromedriver"),
    Program("initdb", "postgresql", TESTS | {"e2e", "e2e-real"}, ("/usr/lib/postgresql/*/bin/{}",)),
    Program("promtool", "prometheus", TESTS),
    Program("nginx", "nginx-light", frozenset({"e2e", "e2e-real", "e2e-installs", "knative"}), SBIN),
    Program("buildah", "buildah", SHIPPED),
    Program("debootstrap", "debootstrap", SHIPPED, SBIN),
    Program("containerd", "containerd", REAL, SBIN),
    Program("runc", "runc", REAL, SBIN),
    Program("host-local", "containernetworking-plugins", REAL, CNI),
    Program("iptables", "iptables", REAL, SBIN),
    Program("ip", "iproute2", REAL, SBIN),
    Program("busybox", "busybox-static", REAL),
    Program("rabbitmq-server", "rabbitmq-server", frozenset({"e2e", "rabbitmq"}), RABBITMQ),
)


BUILD_NOTHING = frozenset({"down", "env", "status", "lint", "deploy", "cluster-functest", "local", "needs"})
"""The make targets for which Go downloads nothing, so that they need no trusted CAs."""


@dataclass(frozen=True)
class Need:
    """Something that is missing, and the package that provides it."""

    what: str
    package: str


def find(name: str) -> Path:
    """Return the path of one of `PROGRAMS`. Raises `LocalClusterError` with the remedy if it is missing."""
    program = next(program for program in PROGRAMS if program.name == name)
    found = program.path()
    if found is None:
        raise LocalClusterError(f"{name} is missing; {remedy([_need(program)])}")
    return found


def missing(purposes: Iterable[str]) -> list[Need]:
    """Return what this host lacks for these purposes."""
    wanted = set(purposes)
    programs = [_need(program) for program in PROGRAMS if wanted & program.purposes and program.path() is None]
    certificates = [] if wanted <= BUILD_NOTHING else _without_certificates()
    return [*_without_venv(), *certificates, *programs]


def _need(program: Program) -> Need:
    return Need(program.name, program.ubuntu if program.ubuntu and _is_ubuntu() else program.package)


def _is_ubuntu() -> bool:
    return RELEASE.is_file() and "ID=ubuntu" in RELEASE.read_text().splitlines()


def _without_venv() -> list[Need]:
    """Return the missing module venv, which Debian packages separately from Python.

    It is not needed if the environment exists or if uv is installed, except with `make UV=`, which selects pip.
    """
    if ENVIRONMENT.exists() or os.environ.get("UV", shutil.which("uv")):
        return []
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return [Need(f"the module venv of Python {version}", f"python{version}-venv")]
    return []


def _without_certificates() -> list[Need]:
    given = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if sys.platform != "linux" or given or any(Path(place).exists() for place in CERTIFICATES):
        return []
    return [Need("a list of certificate authorities", "ca-certificates")]


def remedy(needs: Sequence[Need]) -> str:
    """Return how the user can install what is missing."""
    packages = " ".join(need.package for need in needs)
    if shutil.which("apt-get"):
        return f"as root: apt-get update && apt-get install -y --no-install-recommends {packages}"
    return f"install it with this system's package manager; Debian's packages are {packages}"


def provide(purposes: Sequence[str], *, may_install: bool) -> None:
    """Install what these purposes lack, if `may_install`.

    Raises `LocalClusterError` with one line that lists what is missing and the remedy.
    """
    needs = missing(purposes)
    if needs and may_install and shutil.which("apt-get"):
        _install(needs)
        needs = missing(purposes)
    if needs:
        raise LocalClusterError(f"missing: {', '.join(need.what for need in needs)}; {remedy(needs)}")


def _install(needs: Sequence[Need]) -> None:
    """Install packages with one line of output; the package manager's own output is printed if it fails."""
    packages = " ".join(need.package for need in needs)
    print(f"missing: {', '.join(need.what for need in needs)}; installing {packages} with apt-get", flush=True)
    updated = _apt("update")  # the packages may be available even if one of several lists failed to download
    done = _apt("install", "--no-install-recommends", *packages.split())
    if done.returncode:
        print(updated.stdout, done.stdout, sep="", end="", flush=True)
        raise LocalClusterError(f"apt-get could not install {packages} (exit {done.returncode}): see its output above")


def _apt(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    both, pipe = subprocess.STDOUT, subprocess.PIPE
    return subprocess.run([*APT, *words], env=environment, stdout=pipe, stderr=both, text=True, check=False)


def main() -> None:
    """Parse the make targets and their engines, and install what they need."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--delivery", default="local", help="the engine of up")
    parser.add_argument("--engines", default="local", help="those of bench and chaos, with commas")
    parser.add_argument("--real", default="0", help="how many real nodes up shall start")
    given = parser.parse_args()
    real = ("up" in given.targets and given.real not in ("", "0")) or not SHIPPED.isdisjoint(given.targets)
    engines = {"up": given.delivery, "bench": given.engines, "chaos": given.engines}
    named = (name.strip() for target in given.targets for name in engines.get(target, "").split(","))
    purposes = [*given.targets, *filter(None, named), *(["real"] if real else [])]
    try:
        if real:
            preflight.check()  # fail early: no package helps if this fails
        provide(purposes, may_install=os.geteuid() == 0)
        if real:
            preflight.check()  # repeat it with the tests that needed the packages
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
